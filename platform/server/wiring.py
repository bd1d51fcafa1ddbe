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
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from sqlalchemy import Engine
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from fairserve.engine.wire.client import worker_session
from fairserve.platform.background.jobs.in_process import JobsInProcess
from fairserve.platform.background.jobs.job import JobContext
from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.background.webhooks.outbox import Outbox
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.lease import Lease, LeaseTakenError, fenced
from fairserve.platform.control.ledger import Ledger, Rows
from fairserve.platform.control.options import control_options
from fairserve.platform.control.record import plain_of, stopped_record
from fairserve.platform.control.service import BLOCK_TOKENS, ControlService
from fairserve.platform.db import schema
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.db.keys import ensure_admin_key
from fairserve.platform.db.secret_key import check_secret_key
from fairserve.platform.fleet.fleet import FleetPart, StoredFleet, clashes
from fairserve.platform.fleet.fleet_file import FleetFileError, FleetFileWatch, read_fleet
from fairserve.platform.fleet.kv_event_bridge import KvEventBridge
from fairserve.platform.fleet.model_pools import ModelPools
from fairserve.platform.fleet.models import Models
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.fleet.repository import load_stored
from fairserve.platform.fleet.running_fleet import RunningFleet
from fairserve.platform.fleet.static_workers import static_fleet
from fairserve.platform.fleet.supervisor import Supervisor, socket_folder, worker_command
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.platform.monitoring.history import History
from fairserve.platform.reporting.traffic.recorder import TrafficRecorder
from fairserve.platform.reporting.traffic.segments import delete_recording, recording_folder
from fairserve.platform.reporting.usage.repository import (
    save_open_interactions,
    upsert_calls,
    upsert_interactions,
)
from fairserve.platform.reporting.user_data.pseudonyms import under_pseudonyms
from fairserve.platform.server.app import create_app
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.completions.answer import ClientLimits
from fairserve.platform.serving.completions.idempotency import IdempotentAnswers
from fairserve.platform.serving.completions.service import Completions
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.interactions.restoring import restore_interactions
from fairserve.platform.serving.interactions.service import GRAPHS_AT_ONCE
from fairserve.platform.serving.options import check_options, program_options
from fairserve.platform.serving.programs.service import Programs
from fairserve.platform.serving.programs.task_calls import TaskCalls
from fairserve.platform.tenancy.apps.control_events import load_control_events
from fairserve.platform.tenancy.auth import Authenticator
from fairserve.platform.tenancy.prices.repository import load_book
from fairserve.platform.tenancy.profiles.news import ProfileNews, profile_versions
from fairserve.platform.tenancy.quotas.spent import SpentBudgets, retry_openings
from fairserve.platform.tuning.service import load_system
from fairserve.scheduling.block_keys import BlockHasher
from fairserve.scheduling.system import SystemConfig

if TYPE_CHECKING:
    from fairserve.platform.background.jobs.celery_jobs import JobsOnCelery

logger = logging.getLogger(__name__)

RECOVERY_S = 60.0
"""How long a start waits until what the last process left is in the database."""


class Platform:
    """Every part of one server process, in the order in which they start and stop."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None = None,
        lease: Lease | None = None,
        on_ready: Callable[[Platform], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_ready`` is called once, when the first call could be served.

        Without ``lease`` nobody else uses the database; with it every write checks that it holds.
        ``clock`` is the monotonic clock of control, its history and the recorded traffic.
        """
        self.settings = settings
        self.engine = connect(settings.db.effective_database_url) if engine is None else engine
        self.lease = lease
        sessions = session_factory(self.engine)
        self.sessions = sessions if lease is None else fenced(sessions, lease)
        self.hasher = key_hasher(settings.db)
        self.authenticator = Authenticator(self.sessions, self.hasher)
        self.journal = Journal(
            settings.db.data_dir / "journal",
            segment_bytes=settings.control.journal_segment_bytes,
            max_bytes=settings.control.journal_max_bytes,
        )
        self.outbox = Outbox(settings.background, settings.tenancy.currency)
        self.ledger = Ledger(self.journal, self._write_rows, poison=(DataError, IntegrityError))
        self.traffic: TrafficRecorder | None = None
        self.supervisor: Supervisor | None = None
        self.kv_event_bridge: KvEventBridge | None = None
        self._sockets: Path | None = None
        self.started, self.draining = asyncio.Event(), asyncio.Event()
        self._on_ready, self._clock = on_ready, clock
        self.fleet_watch: FleetFileWatch | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # --- start and stop ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, then start everything. Raises OSError, SQLAlchemyError or ValueError."""
        settings = self.settings
        self._recover()
        self.jobs = self._jobs()
        self.graph_slots = asyncio.Semaphore(GRAPHS_AT_ONCE)
        with self.sessions() as session:
            system = load_system(session, settings.tuning)
        learning = settings.tenancy.learning_options
        known_profiles = profile_versions(self.sessions)  # first: what changes meanwhile is news
        with self.sessions() as session:
            events = load_control_events(session, learning)
        with self.sessions() as session:
            stored = load_stored(session)
        self.traffic = self._start_recorder()
        with self.sessions() as session:
            prices = load_book(session)
        seed = secrets.randbits(63)
        spent = SpentBudgets(self.sessions, self.ledger)
        self.control = ControlService(
            system,
            self.journal,
            control_options(settings.control, settings.tenancy),
            seed=seed,
            prices=prices,
            spent=spent.before,
            on_ended=None if self.traffic is None else self.traffic.ended,
            require_lease=self.require_lease,
            clock=self._clock,
        )
        self.profile_news = ProfileNews(self.sessions, self.control, learning, known_profiles)
        self.control.start()
        for event in events:
            self.control.post(event)
        self.ledger.start()
        await asyncio.to_thread(spent.open_all, events, self.control.openings)
        # The database or the journal has everything that the last process left.
        if not await asyncio.to_thread(self.ledger.flush, RECOVERY_S):
            logger.warning("the ledger is behind: some calls will be missing in restored runs")
        alive_at = None if self.lease is None else self.lease.previous_alive_at
        await restore_interactions(self.sessions, self.control, alive_at)
        self._http = worker_session()
        if settings.fleet.kv_events:
            self.kv_event_bridge = KvEventBridge(BlockHasher(seed, BLOCK_TOKENS), self.control.post)
        self.models = Models(
            lambda worker_id: self.pool.serves(worker_id),
            lambda worker_id: self.pool.absent_s(worker_id),
        )
        self.model_pools = ModelPools(
            self.models,
            local_model=settings.fleet.model,
            on_ready=self._tell_ready,
            tokenize=lambda workers, body: self.pool.tokenize(workers, body),
        )
        self.pool = WorkerPool(
            self.control,
            self._http,
            self.model_pools.worker_joins,
            self.kv_event_bridge,
            local_scheduler=system.local,
            local_options=system.local_options,
        )
        self.history = History(self.control, self.pool.members, clock=self._clock)
        self.answers = IdempotentAnswers(
            retention_s=settings.serving.idempotency_retention_s,
            max_entries=settings.serving.idempotency_max_entries,
            max_bytes=settings.serving.idempotency_max_bytes,
        )
        decisions = DecisionService(
            self.control, self.models, check_options(settings.serving, settings.control)
        )
        self.completions = Completions(
            decisions,
            self.pool,
            self.answers,
            keepalive_s=settings.serving.keepalive_s,
            client_limits=ClientLimits(
                settings.serving.client_buffer_bytes, settings.serving.client_write_timeout_s
            ),
        )
        self.programs = Programs(
            self.sessions,
            self.control,
            self.models,
            TaskCalls(decisions, self.pool),
            program_options(settings.serving, learning),
        )
        await self._start_fleet(stored, system)
        await self.programs.start()
        self.jobs.start()
        openings = retry_openings(self.control.openings)
        background = (self.profile_news.run(), openings, self.history.run())
        self._tasks.extend(asyncio.create_task(each) for each in background)
        self.started.set()

    def require_lease(self) -> None:
        """Raise UnavailableError while another server may hold the database."""
        if self.lease is not None:
            self.lease.require()

    async def drain(self) -> None:
        """Take no new calls and wait for those under way."""
        self.draining.set()
        self.programs.pause()
        await self.control.drain(self.settings.control.drain_timeout_s)

    async def stop(self) -> None:
        """Stop everything; what is not in the database yet stays in the journal."""
        self.programs.pause()
        await self.control.drain(0)
        await self.programs.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.jobs.stop()
        await self.answers.close()
        await self.pool.close()
        if self.kv_event_bridge is not None:
            self.kv_event_bridge.close()
        if self.supervisor is not None:
            await self.supervisor.stop()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        await self._http.close()
        await self.control.close()
        await self.model_pools.close()
        await asyncio.to_thread(self._close_files)
        self.engine.dispose()

    def _close_files(self) -> None:
        # The journal's last entries first, or the ledger would not see them.
        self.journal.close()
        replaced = self.lease is not None and self.lease.lost.is_set()
        if not self.ledger.close(timeout_s=0.0 if replaced else 5.0):
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

    def _jobs(self) -> JobsInProcess | JobsOnCelery:
        settings = self.settings
        if settings.background.jobs_on_celery:
            from fairserve.platform.background.jobs.celery_jobs import JobsOnCelery

            return JobsOnCelery(settings)
        return JobsInProcess(JOBS, JobContext(self.sessions, settings, self.hasher))

    def _start_recorder(self) -> TrafficRecorder | None:
        settings = self.settings
        folder = recording_folder(settings.db.data_dir)
        if not settings.reporting.trace_recording:
            try:
                delete_recording(folder)
            except OSError as error:
                logger.warning("the recorded traffic cannot be deleted: %s", error)
            return None
        recorder = TrafficRecorder(
            folder,
            max_bytes=settings.reporting.trace_max_bytes,
            retention_s=timedelta(days=settings.reporting.trace_retention_days).total_seconds(),
            block_tokens=BLOCK_TOKENS,
            clock=self._clock,
        )
        recorder.start()
        return recorder

    def _write_rows(self, rows: Rows) -> None:
        with self.sessions.begin() as session:
            written = under_pseudonyms(session, self.hasher, rows)
            upsert_calls(session, written.calls)
            upsert_interactions(session, written.ended)
            save_open_interactions(session, written.ended, written.opened)
            self.outbox.record(
                session,
                list(zip(rows.calls, written.calls, strict=True)),
                list(zip(rows.ended, written.ended, strict=True)),
            )

    async def _start_fleet(self, stored: StoredFleet, system: SystemConfig) -> None:
        """The workers of all sources; embedded ones where no source names any."""
        settings = self.settings
        cluster, drains = self.control.cluster, stored.drains
        self.fleet = RunningFleet(self.pool, self.model_pools, cluster, drains=drains)
        if settings.fleet.worker_urls or settings.fleet.fleet_file or stored.part.workers:
            self.fleet.set_part("settings", static_fleet(settings.fleet))
        else:
            embedded = tuple(
                WorkerSpec(f"w{number}", "") for number in range(settings.fleet.workers)
            )
            self.fleet.set_part("embedded", FleetPart(workers=embedded))
            self.model_pools.prefetch()
            self._start_workers(system)
        problems = clashes(stored.part, self.fleet.without("api"))
        if problems:
            logger.error("of the workers and aliases from the API: %s", "; ".join(problems))
        self.fleet.set_stored(stored)
        self._tasks.append(asyncio.create_task(self.fleet.run(), name="fleet"))
        if settings.fleet.fleet_file is not None:
            fleet, models = self.fleet, self.models
            self.fleet_watch = FleetFileWatch(
                settings.fleet.fleet_file,
                others=lambda: fleet.without("file"),
                served=models.names,
                apply=lambda part: fleet.set_part("file", part),
            )
            await self.fleet_watch.look()
            self._tasks.append(asyncio.create_task(self.fleet_watch.run(), name="fleet file"))

    def _tell_ready(self) -> None:
        if self._on_ready is not None:
            self._on_ready(self)

    def _start_workers(self, system: SystemConfig) -> None:
        settings = self.settings
        if settings.fleet.kv_events:
            self._sockets = socket_folder(settings.db.data_dir)
        command = worker_command(
            settings.fleet.model,
            settings.fleet.worker_kv_tokens,
            settings.fleet.worker_max_batch,
            system.local,
            [f"{name}={_option(value)}" for name, value in system.local_options.items()],
            self._sockets,
        )
        self.supervisor = Supervisor(
            command, settings.fleet.workers, self.fleet.embedded_ready, self.fleet.embedded_lost
        )
        self.supervisor.start()


def build_app(settings: Settings, platform: Platform | None = None) -> FastAPI:
    """The application of one process; its lifespan starts and stops the platform."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = platform or Platform(settings)
        await running.start()
        state = app.state
        state.control = running.control
        state.history = running.history
        state.pool = running.pool
        state.fleet = running.fleet
        state.fleet_watch = running.fleet_watch
        state.models = running.models
        state.model_pools = running.model_pools
        state.supervisor = running.supervisor
        state.completions = running.completions
        state.programs = running.programs
        state.graph_slots = running.graph_slots
        state.session_factory = running.sessions
        state.ledger = running.ledger
        state.jobs = running.jobs
        state.draining = running.draining
        state.lease = running.lease
        state.authenticator = running.authenticator
        try:
            yield
        finally:
            await running.stop()

    return create_app(settings, lifespan)


def serve(settings: Settings) -> int:
    """Run the server until it is told to stop; returns the exit code."""
    from fairserve.platform.server.process import ServerProcess, StartError

    try:
        if settings.fleet.fleet_file is not None:
            read_fleet(settings.fleet.fleet_file)
        try:
            settings.db.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StartError(
                f"the data folder {settings.db.data_dir} cannot be made: {error.strerror};"
                " choose another one with --data-dir"
            ) from error
        return ServerProcess(settings).run()
    except (StartError, LeaseTakenError, FleetFileError) as error:
        print(f"fairserve: {error}", file=sys.stderr)
        return 1
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        print(f"fairserve: the database: {' '.join(str(cause).split())}", file=sys.stderr)
        return 1


def prepare_database(settings: Settings, engine: Engine, lease: Lease | None = None) -> str | None:
    """Create the embedded schema, check any schema; returns a new admin key to be shown once.

    Takes the lease before it writes to a database that may be another server's. Raises SchemaError and
    SecretKeyError, which name the command that helps, LeaseTakenError, and ValueError for a secret key
    that is no use.
    """
    schema.prepare(
        engine,
        create_if_empty=settings.db.embedded_database,
        accept_newer=settings.db.accept_newer_schema,
    )
    if lease is not None:
        lease.acquire()
    sessions = session_factory(engine)
    hasher = check_secret_key(sessions, settings.db)
    configured = settings.db.admin_key.get_secret_value() if settings.db.admin_key else None
    return ensure_admin_key(sessions, hasher, configured)


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
