"""Evaluates the rules after each sample, and keeps the alarms in memory and in the database.

In a cell of several servers the one that speaks evaluates and writes; the others show what it wrote, and
learn what is usual. Who begins to speak continues the alarms that are stored, or that it shows while the
database is away, so that an alarm keeps its id, and its time. So does a server after a restart.

The alarms are served from memory. While the database is away they remain right, and are stored, with
their events, once it is back; acknowledgements wait until then.

Cost of a sample: that of the rules, in turns of the event loop, and of the shares of the clients with
demand in a thread while calls wait; in a thread the queries of the jobs, of acknowledgements and of
:mod:`fairserve.platform.background.alarms.recent`, and a transaction if an alarm changed. In a process
that does not speak: a query of the open alarms, and the rules about apps. Weakness: a process that was
suspended writes once before it knows that another speaks.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.background.alarms import store
from fairserve.platform.background.alarms.alarm import Alarm
from fairserve.platform.background.alarms.open_alarms import MAX_OPEN, OpenAlarms
from fairserve.platform.background.alarms.recent import Recent, read_recent
from fairserve.platform.background.alarms.rules import (
    Rules,
    SeenClient,
    SeenModel,
    SeenServer,
    SeenWorker,
    Victim,
)
from fairserve.platform.background.jobs.service import jobs_out
from fairserve.platform.background.settings import JobSettings
from fairserve.platform.base.clock import utc_s
from fairserve.platform.control.messages import Client
from fairserve.platform.control.service import ControlService
from fairserve.platform.control.storage import RowsLedger
from fairserve.platform.db.apart import write_apart
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.fleet.fleet_file import FleetFileWatch
from fairserve.platform.fleet.model_pools import ModelPools
from fairserve.platform.fleet.models import Models
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.monitoring.activity import PoolDemand
from fairserve.platform.monitoring.entitled import EntitledAmong, shares_by_demand
from fairserve.platform.monitoring.live_snapshot import Sample
from fairserve.platform.monitoring.monitoring import Monitoring

logger = logging.getLogger(__name__)

STARTING_S = 60.0
"""Seconds after the start in which a model that has had no worker yet is still starting."""
AT_ONCE = 50
"""Apps that are evaluated in one turn of the event loop: about 3 ms."""


@dataclass(frozen=True, slots=True)
class AlarmSources:
    """The parts of the server that the rules are fed from."""

    control: ControlService
    monitoring: Monitoring
    pool: WorkerPool
    model_pools: ModelPools
    models: Models
    ledger: RowsLedger
    sessions: SessionFactory
    settings: Callable[[], JobSettings]
    fleet_watch: Callable[[], FleetFileWatch | None]
    speaks: Callable[[], bool]
    """Returns true if this process evaluates the rules and writes the alarms."""


class AlarmWatch:
    """The current alarms. Belongs to the event loop."""

    def __init__(
        self,
        sources: AlarmSources,
        clock: Callable[[], float],
        wall: Callable[[], float] = utc_s,
    ) -> None:
        """``clock`` is control's."""
        self._sources = sources
        self._clock, self._wall = clock, wall
        self._rules = Rules(sources.monitoring.app_calls)
        self._alarms = OpenAlarms(lambda: new_id("al"))
        self._unsaved: list[Alarm] = []
        """Resolved alarms that are not stored."""
        self._began_at: float | None = None
        """Time at which this process began to speak; None while another does."""
        self._continues = False
        """True once the stored alarms were read since then."""
        self._recent = Recent()
        self._jobs: Mapping[str, tuple[str, str]] = {}
        self._served: set[str] = set()
        """Models that have had a worker since the start."""
        self._starting_until_s = clock() + STARTING_S
        self._sampled = asyncio.Event()

    # --- reads ------------------------------------------------------------------------------------

    def current(self, tenant: str | None = None) -> list[Alarm]:
        """Return the open and acknowledged alarms that a tenant sees, or all; bad ones first.

        From any thread.
        """
        return [each for each in self._alarms if tenant is None or tenant in each.tenants]

    @property
    def recent(self) -> Recent:
        """Return what happened in the last half hour."""
        return self._recent

    def states(self) -> frozenset[tuple[str, ...]]:
        """Return ids, states and known causes of all of them, to notice a change."""
        return frozenset(
            (each.alarm_id, "over" if each.over else each.state, *each.cause)
            for each in self._alarms
        )

    def by_kind(self) -> Counter[str]:
        """Return the number of open and acknowledged alarms by kind."""
        return Counter(each.key.kind for each in self._alarms)

    def acknowledged(self, alarm_id: str, by: str, at: float) -> None:
        """Show an acknowledgement that is in the database."""
        for alarm in self._alarms:
            if alarm.alarm_id == alarm_id:
                alarm.acknowledged_by, alarm.acknowledged_at = by, at

    # --- samples ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Continue the stored alarms, and evaluate each sample until the task is cancelled."""
        history = self._sources.monitoring.history
        unsubscribe = history.subscribe(lambda sample: self._sampled.set())
        try:
            await self.load()
            while True:
                await self._sampled.wait()
                self._sampled.clear()
                sample = history.last
                try:
                    if sample is not None:
                        await self.take(sample)
                except Exception:
                    logger.exception("the alarms cannot be evaluated")
        finally:
            unsubscribe()

    async def take(self, sample: Sample) -> None:
        """Evaluate a sample if this process speaks; else show what is stored, and learn from it."""
        speaks = self._sources.speaks()
        await (self._continue() if speaks else self.load())
        now_s = self._clock()
        victims: list[Victim] = []
        for number, found_of_app in enumerate(self._rules.victims(self._alarms.by_key(), now_s), 1):
            victims += found_of_app
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        if not speaks:
            return
        clients: Sequence[SeenClient] = ()
        if any(each.waits_s for each in victims):
            demand = self._sources.monitoring.activity.demand()
            entitled_among = self._sources.control.entitlements
            clients = await asyncio.to_thread(seen_clients, demand, entitled_among)
        server = self._server(sample)
        found = self._rules.find(victims, server, clients, self._alarms, self._is_blocked, now_s)
        self._unsaved += self._alarms.update(found, self._wall())
        del self._unsaved[:-MAX_OPEN]
        if self._continues:
            await self._store()

    def _server(self, sample: Sample) -> SeenServer:
        sources = self._sources
        members = {member.worker_id: member for member in sources.pool.members()}
        workers_of = sources.model_pools.workers()
        model_of = {each: model for model, workers in workers_of.items() for each in workers}
        overloaded = {each.model for each in sample.models if each.overloaded}
        up = {model for model in workers_of if sources.models.workers_up(model)}
        drained = {
            model.worker_name
            for model in sources.models.served()
            if model.drained and not model.workers
        }
        self._served |= up
        starting = self._clock() < self._starting_until_s
        watch, since_s = sources.fleet_watch(), sources.ledger.waits_since_s
        return SeenServer(
            models=[
                SeenModel(
                    model,
                    serves=model in up or (starting and model not in self._served),
                    drained=model in drained,
                    overloaded=model in overloaded,
                )
                for model in workers_of
            ],
            workers=[
                SeenWorker(
                    worker_id,
                    model_of.get(worker_id, ""),
                    member.state,
                    str(member.view(0.0)["reason"]),
                )
                for worker_id, member in members.items()
            ],
            fleet_problem="" if watch is None else watch.problem or "",
            ledger_waits_s=None if since_s is None else time.monotonic() - since_s,
            rejected_rows=sources.ledger.rejected_rows,
            jobs=self._jobs,
        )

    def _is_blocked(self, client: Client) -> bool:
        return self._sources.control.client_state(client).blocked

    # --- the database -----------------------------------------------------------------------------

    async def load(self) -> None:
        """Show the alarms that another process stores; the present ones if the database is away."""
        self._began_at, self._continues = None, False
        stored = await self._read()
        if stored is not None:
            self._alarms.replace(stored)

    async def _continue(self) -> None:
        """Continue the stored alarms once after this process began to speak; those it had are older.

        Until then, while the database is away, nothing is stored. What this process opened or resolved
        since it began to speak remains.
        """
        if self._began_at is None:
            self._began_at, self._unsaved = self._wall(), []
        if self._continues:
            return
        stored = await self._read()
        if stored is None:
            return
        resolved = {each.alarm_id for each in self._unsaved}
        known = {each.alarm_id for each in stored}
        own = {each.key: each for each in self._alarms if each.opened_at >= self._began_at}
        own |= {each.key: each for each in stored if each.alarm_id not in resolved}
        self._alarms.replace(own.values())
        self._unsaved = [
            each
            for each in self._unsaved
            if each.alarm_id in known or each.opened_at >= self._began_at
        ]
        self._continues = True

    async def _read(self) -> list[Alarm] | None:
        """Return the stored alarms that are not resolved; None if the database is away."""
        try:
            alarms, self._recent = await asyncio.to_thread(self._stored)
        except SQLAlchemyError as error:
            logger.warning("the alarms are not read: %s", type(error).__name__)
            return None
        return alarms

    def _stored(self) -> tuple[list[Alarm], Recent]:
        with self._sources.sessions() as session:
            return store.load_open(read_only(session)), read_recent(session, utc_now())

    async def _store(self) -> None:
        """Store what has changed; it is tried again after the next sample if the database is away.

        An alarm that the database rejects is tried again once it changes.
        """
        kept = (*self._unsaved, *self._alarms)
        changed = [each for each in kept if each.unsaved or store.lacks_limit(each)]
        ids = [each.alarm_id for each in self._alarms]
        for each in changed:
            each.unsaved = False
        copies = [copy.copy(each) for each in changed]
        try:
            rejected, found, jobs, recent = await asyncio.to_thread(self._write, copies, ids)
        except Exception as error:
            for each in changed:
                each.unsaved = True
            if not isinstance(error, SQLAlchemyError):
                raise
            logger.warning("the alarms are not stored: %s", type(error).__name__)
            return
        for each, stored in zip(changed, copies, strict=True):
            if each.alarm_id not in rejected:
                each.cause, each.notified = stored.cause, stored.tenants
        self._jobs, self._recent = jobs, recent
        for alarm_id, (by, at) in found.items():
            self.acknowledged(alarm_id, by, at)
        self._unsaved = [each for each in self._unsaved if each.unsaved]

    def _write(
        self, alarms: Sequence[Alarm], ids: Collection[str]
    ) -> tuple[set[str], store.Acknowledged, Mapping[str, tuple[str, str]], Recent]:
        """Store alarms; return those rejected, acknowledgements, and the jobs that are not fine."""
        sources = self._sources

        def write(part: Sequence[Alarm]) -> None:
            with sources.sessions.begin() as session:
                store.save(session, part)

        rejected = write_apart(write, alarms)
        for alarm, error in rejected:
            kind, reason = alarm.key.kind, type(error).__name__
            logger.error("the database rejects the alarm %s (%s): %s", alarm.alarm_id, kind, reason)
        with sources.sessions() as session:
            read_only(session)
            jobs = {
                job.name: (job.health, job.error)
                for job in jobs_out(session, sources.settings()).items
                if job.health in ("dead", "failing", "late")
            }
            found = store.acknowledged(session, ids)
            recent = read_recent(session, utc_now())
        return {alarm.alarm_id for alarm, _ in rejected}, found, jobs, recent


def seen_clients(
    demand: Mapping[str, PoolDemand], entitled_among: EntitledAmong
) -> list[SeenClient]:
    """Return the clients of each model whose calls wait, with their shares of it. From any thread."""
    found: list[SeenClient] = []
    for model, (services, queued) in demand.items():
        if queued:
            received, entitled = shares_by_demand(services, queued, entitled_among)
            found += [
                SeenClient(owner, model, received[owner], entitled[owner], queued.get(owner, 0))
                for owner in services
            ]
    return found
