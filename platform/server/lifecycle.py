"""Start and stop of one server process, in the order in which its parts need each other.

:class:`Platform` recovers, starts, drains and stops the parts that
:mod:`fairserve.platform.server.wiring` makes. :func:`build_app` ties it to the application's lifespan.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.background.jobs.in_process import JobsInProcess
from fairserve.platform.base.bulkhead import RequestThreads
from fairserve.platform.base.clock import utc_s
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.base.turns import Turns
from fairserve.platform.console.status import ProcessState, StatusLine
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.storage import ServingRight
from fairserve.platform.fleet.fleet import FleetPart, StoredFleet, clashes
from fairserve.platform.fleet.fleet_file import FleetFileWatch
from fairserve.platform.fleet.parts import FleetParts
from fairserve.platform.fleet.static_workers import static_fleet
from fairserve.platform.fleet.supervisor import Supervisor, socket_folder
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.platform.monitoring.monitoring import Monitoring
from fairserve.platform.reporting.traffic.recorder import TrafficRecorder
from fairserve.platform.reporting.traffic.segments import recording_folder
from fairserve.platform.reporting.usage.spent_budgets import SpentBudgets, retry_openings
from fairserve.platform.server import recovery, wiring
from fairserve.platform.server.app import create_app
from fairserve.platform.server.configuration.fleet_section import fleet_parser
from fairserve.platform.server.http_state import RunningState, put_on
from fairserve.platform.server.settings import Settings
from fairserve.platform.server.stored_settings import StoredSettings
from fairserve.platform.serving.interactions.service import GRAPHS_AT_ONCE, RunParts
from fairserve.platform.serving.messages.endpoint import TokenCounts
from fairserve.platform.serving.options import file_options
from fairserve.platform.tenancy.parts import TenancyParts
from fairserve.platform.tenancy.profiles.changes import ProfileChanges
from fairserve.platform.tuning.preview.service import Previews
from fairserve.scheduling.system import SystemConfig

if TYPE_CHECKING:
    from fairserve.platform.background.jobs.celery_jobs import JobsOnCelery
    from fairserve.platform.server.picker import Picker
    from fairserve.platform.server.shared_order import SharedOrder

logger = logging.getLogger(__name__)

STORED_FLEET_S = 2.0
"""Seconds between two readings of the stored fleet, where several servers change it."""
READY_S = 5.0
"""Longest wait of an API server for the order and for a worker before it listens."""
CONNECTIONS_READY_S = 15.0
"""The same of a server for which connections wait: no other one can serve them."""


class Platform:
    """All parts of one server process. Belongs to one event loop from its start on."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None = None,
        lease: ServingRight | None = None,
        on_ready: Callable[[Platform], None] | None = None,
        addition: Picker | None = None,
        connections_wait: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_ready`` is called once, when the first call could be served.

        With ``addition`` no worker is embedded. With ``connections_wait`` the start does, too, until a
        call can be served.

        Without ``lease`` no other server uses the database; with it every write checks that it holds.
        ``clock`` is the monotonic clock of control, its history and the recorded traffic. Raises
        ValueError if calls are to be traced and cannot be.
        """
        self.tracing = wiring.tracing(settings)
        self.settings = settings
        self.storage = wiring.storage(settings, engine, lease)
        self.lease = lease if self.storage.shared is None else self.storage.shared
        self.engine = self.storage.engine
        self.sessions = self.storage.sessions
        self.hasher = self.storage.hasher
        self.journal = self.storage.journal
        self.ledger = self.storage.ledger
        self.traffic: TrafficRecorder | None = None
        self.supervisor: Supervisor | None = None
        self.fleet_watch: FleetFileWatch | None = None
        self.started, self.draining = asyncio.Event(), asyncio.Event()
        self.waits = False
        """True while it waits for the cell: it has no calls then, and nobody decides here."""
        self.addition = addition
        of_role = READY_S if settings.control.role == "api" else 0.0
        self._ready_within_s = CONNECTIONS_READY_S if connections_wait else of_role
        self._sockets: Path | None = None
        self._on_ready, self._clock = on_ready, clock
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Recover, then start everything. Raises StartError, OSError, SQLAlchemyError or ValueError."""
        settings = self.settings
        self._threads = RequestThreads()
        asyncio.get_running_loop().set_default_executor(self._threads)
        self.jobs = self._jobs()
        self.graph_turns = Turns(GRAPHS_AT_ONCE)
        stored = recovery.load_stored_state(self.sessions, settings)
        shared = self.storage.shared
        if shared is not None:
            self._clock = shared.clock
        self.traffic = wiring.recorder(settings, self._clock)
        if self.traffic is not None:
            self.traffic.start()
        seed = secrets.randbits(63) if shared is None else shared.seed
        spent = SpentBudgets(self.sessions, self.ledger)
        self.control = wiring.control(
            settings,
            self.storage,
            stored,
            spent,
            seed=seed,
            lease=self.lease,
            clock=self._clock,
        )
        self.monitoring = Monitoring(self.control, lambda: self.pool.members(), clock=self._clock)
        if self.traffic is not None:
            self.control.subscribe(self.traffic)
        if self.tracing is not None:
            self.control.subscribe(self.tracing.calls, own=True)
        learning, versions = settings.tenancy.learning_options, stored.profile_versions
        self.profile_changes = ProfileChanges(
            self.sessions, self.control.observe, learning, versions
        )
        self.waits = shared is not None
        fresh = shared is None or await shared.attach()
        self.waits = False
        if fresh:
            recovery.close_open_calls(self.journal)
        else:
            if isinstance(self.journal, Journal):
                rows = self.storage.rows
                await asyncio.to_thread(recovery.write_left_rows, self.journal.folder, rows)
            self.journal.open()
        self.control.start()
        if shared is not None:
            shared.start()
        if fresh:
            alive_at = None if self.lease is None else self.lease.previous_alive_at
            await recovery.restore(
                self.sessions, self.control, self.ledger, spent, stored.events, alive_at
            )
        else:
            self.ledger.start()
        self.workers = wiring.workers(
            settings.fleet, self.control, stored.system, seed=seed, on_ready=self._notify_ready
        )
        self.models, self.pool = self.workers.models, self.workers.pool
        self.alarms = wiring.alarms(
            self.storage,
            self.control,
            self.monitoring,
            self.workers,
            self._clock,
            settings=lambda: self.settings,
            fleet_watch=lambda: self.fleet_watch,
        )
        self.metrics = wiring.metrics(
            settings,
            self.storage,
            self.control,
            self.monitoring,
            self.alarms,
            self.pool,
            self.lease,
            self.tracing,
        )
        serving = wiring.serving(settings, self.storage, self.control, self.workers, self.tracing)
        self.decisions = serving.decisions
        self.answers, self.completions = serving.answers, serving.completions
        self.responses, self.conversations = serving.responses, serving.conversations
        self.programs = serving.programs
        self.files, self.batches = serving.files, serving.batches
        if shared is None:
            await asyncio.to_thread(recovery.end_claims, self.sessions)
            await asyncio.to_thread(recovery.end_cell, self.sessions)
        await self._start_fleet(stored.fleet, stored.system)
        self.answers.start()
        await self.programs.start()
        self.batches.start()
        self.responses.start()
        self.jobs.start()
        openings = retry_openings(self.control.openings.retry)
        background = (
            self.profile_changes.run(),
            openings,
            self.monitoring.history.run(),
            self.alarms.run(),
        )
        self._tasks.extend(asyncio.create_task(each) for each in background)
        if self.addition is not None:
            await self.addition.start(self)
        if self._ready_within_s:
            await self._until_ready()
        self.storage.watch.start()
        self.status = StatusLine(self.process_state, self.alarms.current)
        self.monitoring.history.subscribe(self.status.sampled)
        self.started.set()

    async def _until_ready(self) -> None:
        """Wait until a call can be served, for a while at most.

        Other servers of the port serve it already, or its connections wait for this one.
        """
        assert self.lease is not None, "a server process has one"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ready_within_s):
                while self.lease.over or not self.models.ready():  # noqa: ASYNC110  both poll
                    await asyncio.sleep(0.05)

    async def drain(self) -> None:
        """Accept no new calls, and wait for those in progress."""
        self.draining.set()
        self.answers.pause()
        self.programs.pause()
        self.batches.pause()
        await self.control.drain(self.settings.control.drain_timeout_s)

    async def stop(self) -> None:
        """Stop everything; rows that are not in the database yet stay in the journal."""
        self.programs.pause()
        self.batches.pause()
        await self.control.drain(0)
        if self.addition is not None:
            await self.addition.stop()
        await self.programs.close()
        await self.batches.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.jobs.stop()
        await self.answers.close()
        await self.responses.close()
        await self.pool.close()
        if self.workers.kv_event_bridge is not None:
            self.workers.kv_event_bridge.close()
        if self.supervisor is not None:
            await self.supervisor.stop()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        await self.workers.http.close()
        if self.storage.shared is not None:
            await self.storage.shared.stop(self.ledger.flush)
        await self.control.close()
        await self.workers.model_pools.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
        await asyncio.to_thread(self._close_files)
        await self._end_threads()
        self.storage.watch.close()
        self.engine.dispose()
        self.storage.management.dispose()

    async def _end_threads(self) -> None:
        """Wait for the work in threads that cancelled tasks have left: it may use the database.

        The watch still ends connections of a database that hangs.
        """
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "last") as last:
            await loop.run_in_executor(last, self._threads.shutdown)
        loop.set_default_executor(RequestThreads())  # of what remains, such as the end of the loop

    async def reload(self, settings: Settings) -> None:
        """Apply settings that differ from the present ones in reloadable ones only.

        Those that this does not pass on are read where they are used.
        """
        self.settings = settings
        self.jobs.reload(settings)
        self.metrics.top_clients = settings.server.metrics_top_clients
        self.storage.outbox.settings = settings.background
        self.completions.keepalive_s = settings.serving.keepalive_s
        self.files.options = file_options(settings.serving)
        if self.fleet_watch is not None:
            await self.fleet_watch.check()

    def process_state(self) -> ProcessState:
        """Return what is wrong with this server, from memory. From any thread."""
        rejection = ""
        try:
            if self.lease is not None:
                self.lease.require()
        except UnavailableError as error:
            rejection = error.message
        waits = self.ledger.waits_since_s is not None
        served = [model.worker_name for model in self.models.served()]
        return ProcessState(
            draining=self.draining.is_set(),
            rejection=rejection,
            database_away_since=self.storage.watch.away_since,
            ledger_waits_since=utc_s() - self.ledger.waiting_s() if waits else None,
            models=len(served),
            models_without_worker=[each for each in served if not self.models.workers_up(each)],
        )

    def tenancy(self) -> TenancyParts:
        """Return the running parts that tenants and apps use, with the present settings."""
        return TenancyParts(
            self.settings.tenancy, self.storage.authenticator, self.control, self.programs
        )

    def state(self) -> RunningState:
        """Return what the endpoints need of the started platform."""
        return RunningState(
            control=self.control,
            alarms=self.alarms,
            clients=self.monitoring.clients,
            metrics=self.metrics,
            history=self.monitoring.history,
            tenant_calls=self.monitoring.tenant_calls,
            tenancy=self.tenancy(),
            fleet=FleetParts(
                self.control,
                self.sessions,
                self.fleet,
                self.pool,
                self.models,
                self.workers.model_pools,
                self.supervisor,
                self.fleet_watch,
            ),
            runs=RunParts(
                self.control, self.sessions, self.ledger, self.programs, self.graph_turns
            ),
            preview=self._previews(),
            models=self.models,
            decisions=self.decisions,
            completions=self.completions,
            responses=self.responses,
            conversations=self.conversations,
            token_counts=TokenCounts(self.decisions),
            programs=self.programs,
            files=self.files,
            batches=self.batches,
            session_factory=self.sessions,
            status=self.status,
            ledger=self.ledger,
            jobs=self.jobs,
            draining=self.draining,
            lease=self.lease,
            authenticator=self.storage.authenticator,
        )

    def _previews(self) -> Previews:
        settings = self.settings
        recorded, embedded = settings.reporting.trace_recording, self.supervisor is not None
        return Previews(
            settings=settings.tuning,
            sessions=self.sessions,
            control=self.control,
            ledger=self.ledger,
            recording=recording_folder(settings.db.data_dir) if recorded else None,
            learning=settings.tenancy.learning_options,
            embedded_batch=settings.fleet.worker_max_batch if embedded else None,
        )

    def _jobs(self) -> JobsInProcess | JobsOnCelery:
        return wiring.jobs(self.settings, self.storage)

    def _close_files(self) -> None:
        # The journal's last entries first, or the ledger would not see them.
        self.journal.close()
        replaced = self.lease is not None and self.lease.lost.is_set()
        if not self.ledger.close(timeout_s=0.0 if replaced else 5.0):
            logger.warning("the database does not answer: the next start writes the rest")
        if self.traffic is not None:
            self.traffic.close()

    async def _start_fleet(self, stored: StoredFleet, system: SystemConfig) -> None:
        """Join the workers of all sources; start embedded ones if no source names any."""
        settings = self.settings.fleet
        self.fleet = wiring.fleet(self.workers, self.control, stored.drains)
        external = settings.worker_urls or settings.fleet_file or stored.part.workers
        shared = self.storage.shared
        if shared is not None:
            self._tasks.append(asyncio.create_task(self._follow_fleet(stored), name="stored fleet"))
            self._follow_settings(shared)
        if external or shared is not None or self.addition is not None:
            self.fleet.set_part("settings", static_fleet(settings))
        else:
            embedded = tuple(WorkerSpec(f"w{number}", "") for number in range(settings.workers))
            self.fleet.set_part("embedded", FleetPart(workers=embedded))
            self.workers.model_pools.prefetch()
            self._sockets = socket_folder(self.settings.db.data_dir)
            self.supervisor = wiring.supervisor(settings, system, self.fleet, self._sockets)
            self.supervisor.start()
        problems = clashes(stored.part, self.fleet.without("api"))
        if problems:
            logger.error("of the workers and aliases from the API: %s", "; ".join(problems))
        self.fleet.set_stored(stored)
        self._tasks.append(asyncio.create_task(self.fleet.run(), name="fleet"))
        if settings.fleet_file is not None:
            parse = fleet_parser(self.settings)
            self.fleet_watch = wiring.fleet_watch(
                settings.fleet_file, parse, self.fleet, self.models
            )
            await self.fleet_watch.check()
            self._tasks.append(asyncio.create_task(self.fleet_watch.run(), name="fleet file"))

    def _follow_settings(self, shared: SharedOrder) -> None:
        """Put the settings whose events were lost, and report all caches, when this process speaks."""
        settings = StoredSettings(
            self.sessions,
            self.control,
            self.settings.tenancy.learning_options,
            lambda: self.control.order.speaks,
        )
        noted = shared.noted_time(self.sessions)

        def begin() -> None:
            settings.begin()
            noted.begin()
            self.pool.report_caches_again()

        shared.on_speaking = begin
        self._tasks.append(asyncio.create_task(settings.run(), name="stored settings"))
        self._tasks.append(asyncio.create_task(noted.run(), name="noted time"))

    async def _follow_fleet(self, known: StoredFleet) -> None:
        """Apply the changes of the stored fleet that other servers make."""
        while True:
            await asyncio.sleep(STORED_FLEET_S)
            try:
                stored = await asyncio.to_thread(recovery.load_fleet, self.sessions)
            except SQLAlchemyError as error:
                logger.warning("the stored fleet is not read: %s", type(error).__name__)
                continue
            if stored != known:
                known = stored
                self.fleet.set_stored(stored)

    def _notify_ready(self) -> None:
        """Announce once that the first call can be served."""
        if self._on_ready is not None:
            announce, self._on_ready = self._on_ready, None
            announce(self)


def build_app(settings: Settings, platform: Platform | None = None) -> FastAPI:
    """Return the application of one process; its lifespan starts and stops the platform.

    A server process has started it before, so that it can end with the cause if that fails.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = platform or Platform(settings)
        if not running.started.is_set():
            await running.start()
        put_on(app, running.state())
        running.storage.authenticator.on_forget = app.state.console.sessions.forget
        if running.storage.shared is not None:
            app.state.console.sign_ins.shared = running.storage.shared.attempts()
        try:
            yield
        finally:
            await running.stop()

    return create_app(settings, lifespan)
