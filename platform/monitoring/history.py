"""History of the last half hour: counts of calls, and a sample of the cluster every five seconds.

A sample is taken at the end of each bucket of :mod:`fairserve.platform.monitoring.activity`. Samples are
kept in memory as long as the buckets; a restart loses them. Each sample is published to a bounded number
of subscribers (:mod:`fairserve.platform.base.subscribers`).

Cost of a sample: O(workers + clients of the bucket), once in 5 s; of a snapshot: O(360 * (its clients +
workers)), on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, Protocol

from fairserve.engine.wire.base import WorkerMetrics
from fairserve.platform.base.subscribers import Subscribers
from fairserve.platform.control.messages import Client, ClusterView, WorkerView
from fairserve.platform.control.service import ControlService
from fairserve.platform.monitoring.activity import BUCKET_S, BUCKETS, Activity
from fairserve.platform.monitoring.live_snapshot import (
    LiveSnapshot,
    Sample,
    WorkerSample,
    build,
    leaders,
)
from fairserve.platform.tenancy.auth import OPERATORS

logger = logging.getLogger(__name__)

SHOWN_CLIENTS = 10

OnSample = Callable[[Sample], None]


class PoolMember(Protocol):
    """The attributes of a worker that a sample reads."""

    @property
    def worker_id(self) -> str:
        """Return its id, unique in the pool."""
        ...

    @property
    def state(self) -> str:
        """Return its state for status pages."""
        ...

    @property
    def metrics(self) -> WorkerMetrics | None:
        """Return its last metrics; None if it does not report any."""
        ...


class History:
    """The history of samples, for use on the event loop. The clocks are control's."""

    def __init__(
        self,
        control: ControlService,
        activity: Activity,
        members: Callable[[], Iterable[PoolMember]],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """``members`` returns all workers of the pool, including those that control does not have."""
        self._control = control
        self._activity = activity
        self._members = members
        self._clock = clock
        self._wall = wall
        self._samples: dict[int, Sample] = {}
        """Samples by bucket, ascending."""
        self._subscribers: Subscribers[str, Sample] = Subscribers()
        self._leaders: dict[tuple[str | None, int], Sequence[Client]] = {}
        """Clients with most service, cached until the next sample."""

    async def run(self) -> None:
        """Take samples until the task is cancelled."""
        while True:
            due_s = (self._activity.number + 1) * BUCKET_S
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            if self._clock() < due_s:
                continue  # the sleep ended slightly too early
            try:
                await self.take()
            except Exception:
                logger.exception("cannot take a sample of the cluster")

    async def take(self) -> Sample | None:
        """Take the sample of the last bucket and return it; None if it has one already."""
        activity = self._activity
        activity.settle(self._clock())
        number = activity.number - 1
        if number in self._samples:
            return None
        view = await self._control.cluster()
        own: dict[str, Any] = {"number": number, "workers": self._workers(view, number)}
        same = {
            each.name: getattr(view, each.name) for each in fields(Sample) if each.name not in own
        }
        sample = self._samples[number] = Sample(**own, **same)
        for old in [old for old in self._samples if old <= number - BUCKETS]:
            del self._samples[old]
        self._leaders.clear()
        self._subscribers.publish("", sample)
        return sample

    @property
    def last(self) -> Sample | None:
        """Return the last sample; None before the first."""
        return next(reversed(self._samples.values()), None)

    def _workers(self, view: ClusterView, number: int) -> tuple[WorkerSample, ...]:
        bucket = self._activity.buckets().get(number)
        known = {worker.worker_id: worker for worker in view.workers}
        members = {member.worker_id: member for member in self._members()}
        return tuple(
            _worker(
                worker_id,
                known.get(worker_id),
                members.get(worker_id),
                (0, 0) if bucket is None else bucket.workers.get(worker_id, (0, 0)),
            )
            for worker_id in dict.fromkeys((*members, *known))
        )

    def snapshot(
        self, tenant: str | None = None, *, clients: int = SHOWN_CLIENTS, buckets: int = BUCKETS
    ) -> LiveSnapshot:
        """Return at most ``buckets`` buckets up to the last sample; for a tenant only its own figures.

        ``clients`` is the number of named clients: those with most service.
        """
        activity, offset_s = self._activity, self._wall() - self._clock()
        last = next(reversed(self._samples), None)
        numbers: range = range(0)
        if last is not None:
            numbers = range(max(next(iter(self._samples)), last - buckets + 1), last + 1)
        key = (tenant, clients)
        if key not in self._leaders:
            self._leaders[key] = leaders(activity, *key)
        return build(
            activity,
            self._samples,
            numbers,
            tenant=tenant,
            clients=self._leaders[key],
            at=lambda number: offset_s + (number + 1) * BUCKET_S,
        )

    def subscribe(self, on_sample: OnSample) -> Callable[[], None]:
        """Call ``on_sample`` with each new sample, on the event loop. The result unsubscribes.

        Raises UnavailableError if there are too many subscribers.
        """
        return self._subscribers.subscribe("", on_sample, OPERATORS)


def _worker(
    worker_id: str,
    known: WorkerView | None,
    member: PoolMember | None,
    prompts: tuple[int, int],
) -> WorkerSample:
    reported = None if member is None else member.metrics
    state = member.state if member is not None else "unknown"
    return WorkerSample(
        worker_id=worker_id,
        model="" if known is None else known.model,
        state=state,
        demand_tokens=None if known is None else known.demand_tokens + known.foreign_tokens,
        kv_capacity_tokens=None if known is None else known.kv_capacity_tokens,
        calls=None if known is None else known.calls,
        waiting_tokens=None if known is None else known.waiting_tokens,
        window_tokens=None if known is None else known.window_tokens,
        sequences=None if known is None else known.sequences,
        slots=None if known is None else known.slots,
        reported_running=None if reported is None else reported.running,
        reported_waiting=None if reported is None else reported.waiting,
        kv_used_share=None if reported is None else reported.kv_used_share,
        prompt_tokens=prompts[0],
        cached_tokens=prompts[1],
    )
