"""The only place that chooses classes: from settings to a running server.

:func:`build_app` wires the embedded default: API, control, journal, ledger and supervised workers in
one process. :func:`serve` adds what belongs to the process: locks, socket, signals, the banner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from pathlib import Path

from fastapi import FastAPI
from sqlalchemy import Engine
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from fairserve.engine.base import KvEndpoints, WorkerFacts
from fairserve.engine.client import worker_session
from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME, ensure_builtin_model
from fairserve.platform.app import create_app
from fairserve.platform.apps.control_events import load_control_events
from fairserve.platform.auth import Authenticator
from fairserve.platform.cluster.cache_news import CacheNews
from fairserve.platform.cluster.pool import WorkerPool
from fairserve.platform.cluster.worker_spec import WorkerSpec
from fairserve.platform.completions.idempotency import IdempotentAnswers
from fairserve.platform.completions.models import ServedModel
from fairserve.platform.completions.prepared import PrepareOptions
from fairserve.platform.completions.prompt import PromptReader, load_counter
from fairserve.platform.completions.service import Completions
from fairserve.platform.control.lifecycle import ControlOptions
from fairserve.platform.control.record import (
    CallRecord,
    InteractionRecord,
    plain_of,
    stopped_record,
)
from fairserve.platform.control.service import BLOCK_TOKENS, ControlService
from fairserve.platform.db import schema
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.db.keys import ensure_admin_key
from fairserve.platform.journal.journal import Journal
from fairserve.platform.ledger import Ledger
from fairserve.platform.settings import Settings
from fairserve.platform.supervisor import Supervisor, socket_folder, worker_command
from fairserve.platform.throttling.service import load_system
from fairserve.platform.traffic.recorder import TrafficRecorder
from fairserve.platform.traffic.segments import delete_recording, recording_folder
from fairserve.platform.usage.repository import delete_before, upsert_calls, upsert_interactions
from fairserve.scheduling.block_keys import BlockHasher
from fairserve.scheduling.system import SystemConfig

logger = logging.getLogger(__name__)

RETENTION_INTERVAL_S = 3600.0


class Platform:
    """Every part of one server process, in the order in which they start and stop."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None = None,
        on_ready: Callable[[Platform], None] | None = None,
    ) -> None:
        """``on_ready`` is called once, when the first call could be served."""
        self.settings = settings
        self.engine = connect(settings.effective_database_url) if engine is None else engine
        self.sessions = session_factory(self.engine)
        self.hasher = key_hasher(settings)
        self.authenticator = Authenticator(self.sessions, self.hasher)
        self.journal = Journal(
            settings.data_dir / "journal",
            segment_bytes=settings.journal_segment_bytes,
            max_bytes=settings.journal_max_bytes,
        )
        self.ledger = Ledger(self.journal, self._write_rows, poison=(DataError, IntegrityError))
        self.traffic: TrafficRecorder | None = None
        self.supervisor: Supervisor | None = None
        self.cache_news: CacheNews | None = None
        self._sockets: Path | None = None
        self.started = asyncio.Event()
        self._on_ready = on_ready
        self._reader: PromptReader | None = None
        self._facts: WorkerFacts | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # --- start and stop ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, then start everything. Raises OSError, SQLAlchemyError or ValueError."""
        settings = self.settings
        self._recover()
        with self.sessions() as session:
            system = load_system(session, settings)
        with self.sessions() as session:
            events = load_control_events(session)
        self.traffic = self._start_recorder()
        seed = secrets.randbits(63)
        self.control = ControlService(
            system,
            self.journal,
            ControlOptions(
                max_queue_wait_s=settings.max_queue_wait_s,
                max_queued_calls=settings.max_queued_calls,
                lease_s=settings.lease_s,
            ),
            seed=seed,
            on_ended=None if self.traffic is None else self.traffic.ended,
        )
        self.control.start()
        for event in events:
            self.control.post(event)
        self.ledger.start()
        self._http = worker_session()
        if settings.kv_events:
            self.cache_news = CacheNews(BlockHasher(seed, BLOCK_TOKENS), self.control.post)
        self.pool = WorkerPool(
            self.control,
            self._http,
            self._worker_joins,
            self.cache_news,
            local_scheduler=system.local,
            local_options=system.local_options,
        )
        self.answers = IdempotentAnswers(
            retention_s=settings.idempotency_retention_s,
            max_entries=settings.idempotency_max_entries,
            max_bytes=settings.idempotency_max_bytes,
        )
        self.completions = Completions(
            self.control,
            self.pool,
            self.answers,
            prepare_options=PrepareOptions(settings.default_max_tokens, settings.cache_isolation),
            keepalive_s=settings.keepalive_s,
        )
        if settings.worker_urls:
            publishers = settings.worker_kv_events or ("",) * len(settings.worker_urls)
            for number, (url, told) in enumerate(
                zip(settings.worker_urls, publishers, strict=True)
            ):
                endpoints = KvEndpoints(*told.split()) if told else None
                self.pool.add(WorkerSpec(f"w{number}", url, kv_events=endpoints))
        else:
            self._start_workers(system)
            self._tasks.append(asyncio.create_task(self._load_tokenizer(settings.model)))
        self._tasks.append(asyncio.create_task(self._apply_retention()))
        self.started.set()

    async def drain(self) -> None:
        """Take no new calls and wait for those under way."""
        await self.control.drain(self.settings.drain_timeout_s)

    async def stop(self) -> None:
        """Stop everything; what is not in the database yet stays in the journal."""
        await self.control.drain(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.answers.close()
        await self.pool.close()
        if self.cache_news is not None:
            self.cache_news.close()
        if self.supervisor is not None:
            await self.supervisor.stop()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        await self._http.close()
        await self.control.close()
        if self._reader is not None:
            self._reader.close()
        await asyncio.to_thread(self._close_files)
        self.engine.dispose()

    def _close_files(self) -> None:
        # The journal's last entries first, or the ledger would not see them.
        self.journal.close()
        if not self.ledger.close(timeout_s=5.0):
            logger.warning("the database does not answer: the next start writes the rest")
        if self.traffic is not None:
            self.traffic.close()

    # --- parts ------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Close the calls that the last process left open: failed, with their last progress."""
        ended_at = utc_now().timestamp()
        left = self.journal.open()
        for call in left:
            record = stopped_record(call.accepted, call.progress, ended_at)
            self.journal.append("closed", call.key, plain_of(record))
        if left:
            logger.warning("%d calls were open when the server stopped: recorded", len(left))

    def _start_recorder(self) -> TrafficRecorder | None:
        settings = self.settings
        folder = recording_folder(settings.data_dir)
        if not settings.trace_recording:
            try:
                delete_recording(folder)
            except OSError as error:
                logger.warning("the recorded traffic cannot be deleted: %s", error)
            return None
        recorder = TrafficRecorder(
            folder,
            max_bytes=settings.trace_max_bytes,
            retention_s=timedelta(days=settings.trace_retention_days).total_seconds(),
            block_tokens=BLOCK_TOKENS,
        )
        recorder.start()
        return recorder

    def _write_rows(
        self, calls: Sequence[CallRecord], interactions: Sequence[InteractionRecord]
    ) -> None:
        with self.sessions.begin() as session:
            upsert_calls(session, calls)
            upsert_interactions(session, interactions)

    def _start_workers(self, system: SystemConfig) -> None:
        settings = self.settings
        if settings.kv_events:
            self._sockets = socket_folder(settings.data_dir)
        command = worker_command(
            settings.model,
            settings.worker_kv_tokens,
            settings.worker_max_batch,
            system.local,
            [f"{name}={_option(value)}" for name, value in system.local_options.items()],
            self._sockets,
        )
        self.supervisor = Supervisor(
            command,
            settings.workers,
            lambda worker_id, url: self.pool.add(WorkerSpec(worker_id, url)),
            self.pool.remove,
        )
        self.supervisor.start()

    def _worker_joins(self, spec: WorkerSpec, facts: WorkerFacts) -> None:
        """A worker says what it has. Raises ValueError if it does not fit the others."""
        if not facts.models:
            raise ValueError("it serves no model")
        if self._facts is None:
            self._facts = facts
            if self._reader is None and self.settings.worker_urls:
                model = self.settings.model or facts.models[0]
                self._tasks.append(asyncio.create_task(self._load_tokenizer(model)))
        elif facts.models[0] != self._facts.models[0]:
            raise ValueError(
                f"it serves {facts.models[0]!r}; the others serve {self._facts.models[0]!r}"
            )
        elif _context(facts) < _context(self._facts):
            self._facts = facts
        self._publish_model()

    async def _load_tokenizer(self, model: str) -> None:
        if not model or model == BUILTIN_MODEL_NAME:
            model = str(await asyncio.to_thread(ensure_builtin_model))
        counter = await asyncio.to_thread(load_counter, model)
        self._reader = PromptReader(counter)
        self._publish_model()

    def _publish_model(self) -> None:
        """Serve the model once a worker and the tokenizer are there."""
        if self._facts is None or self._reader is None:
            return
        name = self._facts.models[0]
        names = (name, self.settings.model) if self.settings.model not in ("", name) else (name,)
        first = self.completions.model is None
        self.completions.model = ServedModel(names, name, _context(self._facts), self._reader)
        if first and self._on_ready is not None:
            # After the worker that just told its facts has joined.
            asyncio.get_running_loop().call_soon(self._on_ready, self)

    async def _apply_retention(self) -> None:
        """Delete what is older than its retention, in short transactions."""
        age = timedelta(days=self.settings.ledger_retention_days)
        while True:
            try:
                while await asyncio.to_thread(self._delete_before, age):
                    pass
            except SQLAlchemyError as error:
                logger.warning("the retention waits for the database: %s", type(error).__name__)
            await asyncio.sleep(RETENTION_INTERVAL_S)

    def _delete_before(self, age: timedelta) -> int:
        with self.sessions.begin() as session:
            return delete_before(session, utc_now() - age)


def build_app(settings: Settings, platform: Platform | None = None) -> FastAPI:
    """The application of one process; its lifespan starts and stops the platform."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = platform or Platform(settings)
        await running.start()
        state = app.state
        state.control = running.control
        state.pool = running.pool
        state.supervisor = running.supervisor
        state.completions = running.completions
        state.session_factory = running.sessions
        state.authenticator = running.authenticator
        try:
            yield
        finally:
            await running.stop()

    return create_app(settings, lifespan)


def serve(settings: Settings) -> int:
    """Run the server until it is told to stop; returns the exit code."""
    from fairserve.platform.process import ServerProcess, StartError

    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return ServerProcess(settings).run()
    except StartError as error:
        print(f"fairserve: {error}", file=sys.stderr)
        return 1
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        print(f"fairserve: the database: {' '.join(str(cause).split())}", file=sys.stderr)
        return 1


def prepare_database(settings: Settings, engine: Engine) -> str | None:
    """Create the embedded schema, check any schema; returns a new admin key to be shown once.

    Raises SchemaError, which says the command that helps.
    """
    schema.prepare(engine, create_if_empty=settings.embedded_database)
    configured = settings.admin_key.get_secret_value() if settings.admin_key else None
    return ensure_admin_key(session_factory(engine), key_hasher(settings), configured)


def _context(facts: WorkerFacts) -> int:
    """Prompt and output that fit the model and the worker's cache."""
    known = [n for n in (facts.context_tokens, facts.kv_capacity_tokens) if n is not None]
    return min(known) if known else 1 << 31


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
