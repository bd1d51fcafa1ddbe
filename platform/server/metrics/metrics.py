"""The scrape: reads all metrics of the server and writes them in Prometheus' text format.

Cost of a scrape: O(models + workers + jobs + active clients). The event loop reads views and counters
(about a millisecond for a few hundred series) and the clients in portions
(:mod:`fairserve.platform.monitoring.client_shares`); a thread reads the jobs' rows, one query, and
writes the text. All scrapes within ``KEEP_S`` share one, so that scrapers cannot add load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.control.order import EventOrder
from fairserve.platform.control.service import ControlService
from fairserve.platform.control.settings import Role
from fairserve.platform.control.storage import RowsJournal, RowsLedger, ServingRight
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.jobs import JobState
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.monitoring.monitoring import Monitoring
from fairserve.platform.monitoring.span_counts import SpanCounts
from fairserve.platform.server.metrics import families

KEEP_S = 1.0
"""Age up to which a scrape gets the last text."""
JOBS_S = 1.0
"""Longest wait of a scrape for the rows of the jobs, in seconds."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Parts of the server that a scrape reads."""

    control: ControlService
    monitoring: Monitoring
    alarms: Callable[[], Mapping[str, int]]
    """Returns the number of alarms that are not resolved, by kind."""
    pool: WorkerPool
    journal: RowsJournal
    ledger: RowsLedger
    lease: ServingRight | None
    role: Role
    order: EventOrder
    sessions: SessionFactory
    journal_limit_bytes: int
    version: str
    top_clients: int
    """Most clients with labels of their own, until another number is set."""
    spans: Callable[[], SpanCounts] | None = None
    """Spans of traced calls; None: calls are not traced."""


class Metrics:
    """Belongs to the event loop."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.monotonic) -> None:
        self.top_clients = sources.top_clients
        self._sources = sources
        self._clock = clock
        self._lock = asyncio.Lock()
        self._text = b""
        self._until_s = 0.0
        self._reading: asyncio.Task[Sequence[JobState] | None] | None = None
        self._process = ProcessCollector(registry=None)

    async def text(self, more: Iterable[Metric] = ()) -> bytes:
        """Return all metrics; ``more`` are those that the caller counts."""
        async with self._lock:
            if not self._text or self._clock() >= self._until_s:
                self._text = await self._scrape(more)
                self._until_s = self._clock() + KEEP_S
            return self._text

    async def _scrape(self, more: Iterable[Metric]) -> bytes:
        sources = self._sources
        states = await self._jobs()
        found = await sources.monitoring.client_shares.read(self.top_clients)
        view = await sources.control.cluster()
        lease_over = sources.lease is not None and sources.lease.over
        read = [
            *more,
            *families.build_info(sources.version, view.system),
            *sources.monitoring.call_metrics.families(),
            *families.cluster(view),
            *families.workers(sources.pool.members(), view),
            *families.shares(found),
            *families.alarms(sources.alarms()),
            *families.storage(
                sources.journal, sources.journal_limit_bytes, sources.ledger, lease_over
            ),
            *families.order(sources.role, sources.order),
            *families.jobs(states),
            *families.spans(None if sources.spans is None else sources.spans()),
        ]
        return await asyncio.to_thread(self._write, read)

    async def _jobs(self) -> Sequence[JobState] | None:
        """Return the jobs' rows; None if the database fails, or does not answer in time.

        A query that hangs is waited for again by the next scrape, so that no threads pile up.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(self._read_jobs))
        done, _ = await asyncio.wait({self._reading}, timeout=JOBS_S)
        if not done:
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    def _read_jobs(self) -> Sequence[JobState] | None:
        try:
            with self._sources.sessions() as session:
                return read_only(session).scalars(select(JobState)).all()
        except SQLAlchemyError:
            return None

    def _write(self, read: Sequence[Metric]) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Read((*read, *self._process.collect())))
        return generate_latest(registry)


@dataclass(frozen=True, slots=True, eq=False)
class _Read(Collector):
    metrics: Sequence[Metric]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self.metrics
