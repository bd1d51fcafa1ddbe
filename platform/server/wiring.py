"""Chooses the classes of the server's parts and connects them: from settings to objects.

Nothing here starts, waits or recovers; :mod:`fairserve.platform.server.lifecycle` does, in its order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import ClientSession
from sqlalchemy import Engine

from fairserve.engine.wire.client import worker_session
from fairserve.platform.background.alarms.watch import AlarmSources, AlarmWatch
from fairserve.platform.background.jobs.in_process import JobsInProcess
from fairserve.platform.background.jobs.job import JobContext
from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.background.webhooks.outbox import Outbox
from fairserve.platform.base.clock import utc_s
from fairserve.platform.base.version import product_version
from fairserve.platform.control.cell import BLOCK_TOKENS
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.lease import fenced
from fairserve.platform.control.ledger import Ledger
from fairserve.platform.control.log.marks import LedgerElsewhere, NoJournal
from fairserve.platform.control.options import control_options
from fairserve.platform.control.service import ControlService
from fairserve.platform.control.storage import RowsJournal, RowsLedger, ServingRight
from fairserve.platform.db.engine import (
    SessionFactory,
    connect,
    database_watch,
    management_engine,
    session_factory,
)
from fairserve.platform.db.key_hash import KeyHasher, key_hasher
from fairserve.platform.db.watch import DatabaseWatch
from fairserve.platform.fleet.fleet import DrainNote
from fairserve.platform.fleet.fleet_file import FleetFileWatch, Parse
from fairserve.platform.fleet.kv_event_bridge import KvEventBridge
from fairserve.platform.fleet.model_pools import ModelPools
from fairserve.platform.fleet.models import Models
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.fleet.running_fleet import RunningFleet
from fairserve.platform.fleet.settings import FleetSettings
from fairserve.platform.fleet.supervisor import Supervisor, worker_command
from fairserve.platform.monitoring.monitoring import Monitoring
from fairserve.platform.monitoring.tracing.loading import tracing_class
from fairserve.platform.reporting.traffic.recorder import TrafficRecorder
from fairserve.platform.reporting.traffic.segments import delete_recording, recording_folder
from fairserve.platform.reporting.usage.spent_budgets import SpentBudgets
from fairserve.platform.server.ledger_rows import LedgerRows
from fairserve.platform.server.metrics.metrics import Metrics, Sources
from fairserve.platform.server.recovery import StoredState
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.batches.line_calls import line_calls
from fairserve.platform.serving.batches.service import Batches
from fairserve.platform.serving.completions.idempotency import IdempotentAnswers
from fairserve.platform.serving.completions.service import Completions
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.files.service import Files
from fairserve.platform.serving.files.store import open_store
from fairserve.platform.serving.options import (
    background_options,
    batch_options,
    check_options,
    file_options,
    program_options,
    store_options,
)
from fairserve.platform.serving.programs.service import Programs
from fairserve.platform.serving.programs.task_calls import TaskCalls
from fairserve.platform.serving.responses.conversations import Conversations
from fairserve.platform.serving.responses.service import Responses
from fairserve.platform.serving.responses.store import ResponseStore
from fairserve.platform.tenancy.auth import CACHE_TTL_S, SHARED_TTL_S, Authenticator
from fairserve.platform.tenancy.failed_keys import FailedKeys
from fairserve.scheduling.locality.block_keys import BlockHasher
from fairserve.scheduling.system import SystemConfig

if TYPE_CHECKING:
    from fairserve.platform.background.jobs.celery_jobs import JobsOnCelery
    from fairserve.platform.monitoring.tracing.exporting import Tracing
    from fairserve.platform.server.shared_order import SharedOrder

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


@dataclass(frozen=True)
class Storage:
    """The database and the journal, and what reads and writes them."""

    engine: Engine
    management: Engine
    """Connections of requests that make no call."""
    watch: DatabaseWatch
    sessions: SessionFactory
    hasher: KeyHasher
    authenticator: Authenticator
    journal: RowsJournal
    outbox: Outbox
    rows: LedgerRows
    ledger: RowsLedger
    shared: SharedOrder | None
    """Parts that this process shares with others; None if it decides alone."""


def storage(settings: Settings, engine: Engine | None, lease: ServingRight | None) -> Storage:
    """Connect the database. With a lease, every write checks that this server holds it."""
    shared = _shared_order(settings) if settings.control.role != "all" else None
    engine = connect(settings.db.effective_database_url) if engine is None else engine
    management = management_engine(engine)
    watch = database_watch(management)
    plain = session_factory(engine, management, watch)
    sessions = plain if lease is None else fenced(plain, lease)
    hasher = key_hasher(settings.db)
    outbox = Outbox(settings.background, settings.tenancy.currency)
    rows = LedgerRows(sessions, hasher, outbox)
    if settings.control.role == "api" and shared is not None:
        journal: RowsJournal = NoJournal()
        ledger: RowsLedger = LedgerElsewhere(shared.marks)
    else:
        journal, ledger = _kept_rows(settings, rows, shared)
    known_s = CACHE_TTL_S if shared is None else SHARED_TTL_S
    failed = FailedKeys(sessions, hasher)
    authenticator = Authenticator(sessions, hasher, failed, ttl_s=known_s)
    return Storage(
        engine=engine,
        management=management,
        watch=watch,
        sessions=sessions,
        hasher=hasher,
        authenticator=authenticator,
        journal=journal,
        outbox=outbox,
        rows=rows,
        ledger=ledger,
        shared=shared,
    )


def _kept_rows(
    settings: Settings, rows: LedgerRows, shared: SharedOrder | None
) -> tuple[Journal, Ledger]:
    own = Journal(
        settings.db.data_dir / "journal",
        max_bytes=settings.control.journal_max_bytes,
        awaited=shared is None,
    )
    return own, Ledger(own, rows) if shared is None else Ledger(own, rows, marks=shared.marks)


def jobs(settings: Settings, stored: Storage) -> JobsInProcess | JobsOnCelery:
    """Return what runs the background jobs: this process, or Celery's workers."""
    if settings.background.jobs_on_celery:
        from fairserve.platform.background.jobs.celery_jobs import JobsOnCelery

        return JobsOnCelery(settings)
    return JobsInProcess(JOBS, JobContext(stored.sessions, settings, stored.hasher))


def recorder(settings: Settings, clock: Clock) -> TrafficRecorder | None:
    """Return the recorder of traffic; None if traffic is not recorded, and then delete the recording."""
    folder = recording_folder(settings.db.data_dir)
    if settings.control.role == "api":
        return None  # a control process records all traffic
    if not settings.reporting.trace_recording:
        try:
            delete_recording(folder)
        except OSError as error:
            logger.warning("the recorded traffic cannot be deleted: %s", error)
        return None
    return TrafficRecorder(
        folder,
        block_tokens=BLOCK_TOKENS,
        clock=clock,
    )


def tracing(settings: Settings) -> Tracing | None:
    """Return the tracer of calls; None if calls are not traced. Raises ValueError."""
    kind = tracing_class(settings.monitoring)
    return None if kind is None else kind()


def control(
    settings: Settings,
    stored: Storage,
    state: StoredState,
    spent: SpentBudgets,
    *,
    seed: int,
    lease: ServingRight | None,
    clock: Clock,
) -> ControlService:
    """Return control with the stored system and prices; it has no apps and workers yet."""
    shared, order = stored.shared, None
    if shared is not None:
        order = partial(shared.make, journal=stored.journal)
    return ControlService(
        state.system,
        stored.journal,
        control_options(settings.control, settings.tenancy),
        seed=seed,
        prices=state.prices,
        spent=spent.before,
        require_lease=_no_lease if lease is None else lease.require,
        clock=clock,
        wall=utc_s if shared is None else clock,
        order=order,
    )


def _shared_order(settings: Settings) -> SharedOrder:
    from fairserve.platform.server.shared_order import SharedOrder

    return SharedOrder(settings, key_hasher(settings.db))


def _no_lease() -> None:
    """Accept a call: no other server uses the database."""


@dataclass(frozen=True)
class WorkerParts:
    """The connections to the workers, and the models that they serve."""

    http: ClientSession
    kv_event_bridge: KvEventBridge | None
    models: Models
    model_pools: ModelPools
    pool: WorkerPool


def workers(
    settings: FleetSettings,
    control: ControlService,
    system: SystemConfig,
    *,
    seed: int,
    on_ready: Callable[[], None],
) -> WorkerParts:
    """Connect control to a fleet without workers. ``on_ready`` is called when a model is served."""
    http = worker_session()
    bridge = KvEventBridge(BlockHasher(seed, BLOCK_TOKENS), control.observe)
    models = Models(
        lambda worker_id: pool.serves(worker_id), lambda worker_id: pool.absent_s(worker_id)
    )
    model_pools = ModelPools(
        models,
        local_model=settings.model,
        on_ready=on_ready,
        tokenize=lambda workers, body: pool.tokenize(workers, body),
    )
    pool = WorkerPool(
        control,
        http,
        model_pools.worker_joins,
        bridge,
        local_scheduler=system.local,
        local_options=system.local_options,
        shared=control.order.shared,
    )
    return WorkerParts(http, bridge, models, model_pools, pool)


def alarms(
    stored: Storage,
    control: ControlService,
    monitoring: Monitoring,
    workers: WorkerParts,
    clock: Clock,
    *,
    settings: Callable[[], Settings],
    fleet_watch: Callable[[], FleetFileWatch | None],
) -> AlarmWatch:
    """Return the watch of the alarms over these parts; ``settings`` returns those in force."""
    return AlarmWatch(
        AlarmSources(
            control=control,
            monitoring=monitoring,
            pool=workers.pool,
            model_pools=workers.model_pools,
            models=workers.models,
            ledger=stored.ledger,
            sessions=stored.sessions,
            settings=settings,
            fleet_watch=fleet_watch,
            speaks=lambda: control.order.speaks,
        ),
        clock,
    )


def metrics(
    settings: Settings,
    stored: Storage,
    control: ControlService,
    monitoring: Monitoring,
    alarms: AlarmWatch,
    pool: WorkerPool,
    lease: ServingRight | None,
    tracing: Tracing | None,
) -> Metrics:
    """Return the scrape over these parts."""
    return Metrics(
        Sources(
            control=control,
            monitoring=monitoring,
            alarms=alarms.by_kind,
            pool=pool,
            journal=stored.journal,
            ledger=stored.ledger,
            lease=lease,
            role=settings.control.role,
            order=control.order,
            sessions=stored.sessions,
            journal_limit_bytes=settings.control.journal_max_bytes,
            version=product_version(),
            top_clients=settings.server.metrics_top_clients,
            spans=None if tracing is None else tracing.counts,
        )
    )


@dataclass(frozen=True)
class Serving:
    """The services behind completions, programs, files and batches."""

    decisions: DecisionService
    answers: IdempotentAnswers
    completions: Completions
    responses: Responses
    conversations: Conversations
    programs: Programs
    files: Files
    batches: Batches


def serving(
    settings: Settings,
    stored: Storage,
    control: ControlService,
    workers: WorkerParts,
    tracing: Tracing | None,
) -> Serving:
    """Connect the services to control and workers. Raises ValueError for a bad file_store_url."""
    own = settings.serving
    answers = IdempotentAnswers(None if stored.shared is None else stored.shared.answers())
    options = check_options(own)
    decisions = DecisionService(stored.authenticator, control, workers.models, options)
    on_content = None
    if tracing is not None and settings.monitoring.tracing == "content":
        on_content = tracing.calls.add_content
    completions = Completions(
        decisions, workers.pool, answers, on_content=on_content, keepalive_s=own.keepalive_s
    )
    kept = store_options(own)
    conversations = Conversations(stored.sessions, kept)
    responses = Responses(
        completions,
        decisions,
        ResponseStore(stored.sessions, stored.hasher, conversations, kept),
        background_options(settings.control.max_tenant_share, settings.control.max_queue_wait_s),
    )
    programs = Programs(
        stored.sessions,
        control,
        workers.models,
        TaskCalls(decisions, workers.pool, on_content),
        program_options(own, settings.control.max_tenant_share, settings.tenancy.learning_options),
    )
    store = open_store(own.file_store_url, stored.sessions)
    files = Files(stored.sessions, store, file_options(own))
    batches = Batches(
        stored.sessions,
        files,
        line_calls(decisions, workers.pool),
        batch_options(own, settings.control.max_tenant_share),
    )
    return Serving(
        decisions, answers, completions, responses, conversations, programs, files, batches
    )


def fleet(
    workers: WorkerParts, control: ControlService, drains: Mapping[str, DrainNote]
) -> RunningFleet:
    """Return the fleet of all sources, empty yet. ``drains``: workers that drain, by id."""
    return RunningFleet(workers.pool, workers.model_pools, control.cluster, drains=drains)


def fleet_watch(file: Path, parse: Parse, fleet: RunningFleet, models: Models) -> FleetFileWatch:
    """Return the watch that applies each change of the fleet file to the fleet."""
    return FleetFileWatch(
        file,
        others=lambda: fleet.without("file"),
        served=models.names,
        apply=lambda part: fleet.set_part("file", part),
        parse=parse,
    )


def supervisor(
    settings: FleetSettings, system: SystemConfig, fleet: RunningFleet, sockets: Path | None
) -> Supervisor:
    """Return the supervisor of the embedded workers, which publish KV events in ``sockets``."""
    command = worker_command(
        settings.model,
        settings.worker_kv_tokens,
        settings.worker_max_batch,
        system.local,
        [f"{name}={_option(value)}" for name, value in system.local_options.items()],
        sockets,
    )
    return Supervisor(command, settings.workers, fleet.embedded_ready, fleet.embedded_lost)


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
