"""Chart data of the last half hour: arrays with one entry per bucket, earliest first.

A count is 0 in an empty bucket. None means that there was nothing to measure (delays, hit rate, index),
that the sample is missing, or that the tenant is unnamed in the bucket.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fairserve.platform.control.messages import Client, ModelView
from fairserve.platform.monitoring.activity import BUCKET_S, Activity
from fairserve.platform.monitoring.activity_bucket import ClosedBucket, Counts
from fairserve.scheduling.events import CallOutcome

Series = list[float | None]

_OUTCOMES: tuple[CallOutcome, ...] = ("completed", "failed", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """A worker at the end of a bucket, with the prompt tokens of calls that ended in it."""

    worker_id: str
    model: str
    state: str
    demand_tokens: int | None
    """None if control does not have the worker."""
    kv_capacity_tokens: int | None
    calls: int | None
    waiting_tokens: int | None
    window_tokens: float | None
    """``waiting_tokens`` with which it gets no further calls; None if the system has no such window."""
    sequences: int | None
    """Sequences of the calls sent to it."""
    slots: int | None
    """Sequences that it runs at a time; None if unknown."""
    reported_running: int | None
    """Running sequences reported by the worker, including foreign ones; None without a report."""
    reported_waiting: int | None
    kv_used_share: float | None
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at the end of a bucket."""

    number: int
    """Number of the bucket."""
    overloaded: bool
    demand_tokens: int
    capacity_tokens: int
    queued_calls: int
    running_calls: int
    live_interactions: int
    models: tuple[ModelView, ...]
    workers: tuple[WorkerSample, ...]


@dataclass(frozen=True, slots=True)
class ActivitySeries:
    """Counts of calls and runs, of one or all tenants."""

    service: Series
    clients: Series
    """Number of served clients."""
    jain_index: Series
    """Jain's index, defined in :mod:`fairserve.platform.monitoring.activity`."""
    accepted: Series
    refused: dict[str, Series]
    """Rejected calls by reason."""
    ended: dict[str, Series]
    """Ended calls by outcome."""
    runs_begun: Series
    runs_ended: Series
    queued_calls: Series
    running_calls: Series
    queue_p50_s: Series
    queue_p99_s: Series
    prompt_tokens: Series
    """Prompt tokens of ended calls, including ``cached_tokens``."""
    cached_tokens: Series


@dataclass(frozen=True, slots=True)
class ClientSeries:
    """The service of one client."""

    tenant: str
    app: str
    user: str
    service: Series


@dataclass(frozen=True, slots=True)
class ModelSeries:
    """One model's pool, with the loads at which its overload begins and ends."""

    high_watermark: float
    low_watermark: float
    overloaded: list[bool | None]
    demand_tokens: Series
    capacity_tokens: Series
    queued_calls: Series
    expected_wait_s: Series
    """Expected wait of a call that is queued then; 0 while work does not wait."""


@dataclass(frozen=True, slots=True)
class WorkerSeries:
    """One worker, with the fields of :class:`WorkerSample`; ``model`` and ``state`` are the latest."""

    model: str
    state: str
    demand_tokens: Series
    kv_capacity_tokens: Series
    calls: Series
    waiting_tokens: Series
    window_tokens: Series
    sequences: Series
    slots: Series
    reported_running: Series
    reported_waiting: Series
    kv_used_share: Series
    prompt_tokens: Series
    cached_tokens: Series


@dataclass(frozen=True, slots=True)
class ClusterSeries:
    """Figures of the cluster, for operators only."""

    demand_tokens: Series
    capacity_tokens: Series
    queued_calls: Series
    running_calls: Series
    live_interactions: Series
    models: dict[str, ModelSeries]
    workers: dict[str, WorkerSeries]


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """The figures of all tenants, or those visible to one tenant."""

    tenant: str | None
    bucket_s: float
    at: list[float]
    """End of each bucket, in UTC epoch seconds."""
    overloaded: list[bool | None]
    """True if any model is overloaded."""
    activity: ActivitySeries
    clients: list[ClientSeries]
    """Clients with most service in the half hour."""
    other_clients: Series
    """Service of all other clients."""
    cluster: ClusterSeries | None
    """None in a tenant's view."""


def leaders(activity: Activity, tenant: str | None, most: int) -> list[Client]:
    """Return the clients with most service in the half hour, descending. O(clients)."""
    owners = (
        owner
        for owner in activity.clients()
        if (tenant is None or owner[0] == tenant) and activity.service(owner)[-1] > 0
    )
    return heapq.nsmallest(most, owners, key=lambda each: (-activity.service(each)[-1], each))


def build(
    activity: Activity,
    samples: Mapping[int, Sample],
    numbers: Sequence[int],
    *,
    tenant: str | None,
    clients: Sequence[Client],
    at: Callable[[int], float],
) -> LiveSnapshot:
    """Return the arrays over these buckets for named ``clients``; ``at`` has the buckets' ends."""
    buckets = activity.buckets()
    found = [buckets.get(number) for number in numbers]
    taken = [samples.get(number) for number in numbers]
    counts = [_counts(bucket, tenant) for bucket in found]
    named = [
        [0.0 if bucket is None else bucket.clients.get(owner, 0.0) for bucket in found]
        for owner in clients
    ]
    return LiveSnapshot(
        tenant=tenant,
        bucket_s=BUCKET_S,
        at=[at(number) for number in numbers],
        overloaded=_column(taken, "overloaded"),
        activity=_activity(counts),
        clients=[
            ClientSeries(*owner, list(own)) for owner, own in zip(clients, named, strict=True)
        ],
        other_clients=[
            None if each is None else each.service - sum(own[n] for own in named)
            for n, each in enumerate(counts)
        ],
        cluster=_cluster(taken) if tenant is None else None,
    )


_NOTHING = Counts()


def _counts(bucket: ClosedBucket | None, tenant: str | None) -> Counts | None:
    """Return the counts of a bucket; None if the tenant may be one of the unnamed."""
    if bucket is None:
        return _NOTHING
    if tenant is None:
        return bucket.whole
    return bucket.tenants.get(tenant, None if bucket.other_tenants else _NOTHING)


def _column(rows: Sequence[object], name: str) -> list[Any]:
    """Return an attribute of each row, with None for missing rows."""
    return [None if row is None else getattr(row, name) for row in rows]


def _activity(counts: Sequence[Counts | None]) -> ActivitySeries:
    def of(value: Callable[[Counts], float | None]) -> Series:
        return [None if each is None else value(each) for each in counts]

    def by_name(parts: str, names: Iterable[str]) -> dict[str, Series]:
        return {
            name: [None if each is None else getattr(each, parts).get(name, 0) for each in counts]
            for name in names
        }

    reasons = {reason for each in counts if each is not None for reason in each.refused}
    return ActivitySeries(
        service=_column(counts, "service"),
        clients=_column(counts, "clients"),
        jain_index=_column(counts, "jain"),
        accepted=_column(counts, "accepted"),
        refused=by_name("refused", sorted(reasons)),
        ended=by_name("ended", _OUTCOMES),
        runs_begun=_column(counts, "runs_begun"),
        runs_ended=_column(counts, "runs_ended"),
        queued_calls=_column(counts, "queued"),
        running_calls=_column(counts, "running"),
        queue_p50_s=of(lambda each: each.delay_quantile(0.5)),
        queue_p99_s=of(lambda each: each.delay_quantile(0.99)),
        prompt_tokens=_column(counts, "prompt_tokens"),
        cached_tokens=_column(counts, "cached_tokens"),
    )


def _cluster(samples: Sequence[Sample | None]) -> ClusterSeries:
    models = _rows([None if each is None else each.models for each in samples], "model")
    workers = _rows([None if each is None else each.workers for each in samples], "worker_id")
    own = ("demand_tokens", "capacity_tokens", "queued_calls", "running_calls")
    return ClusterSeries(
        **{name: _column(samples, name) for name in (*own, "live_interactions")},
        models={name: _series(ModelSeries, rows) for name, rows in models.items()},
        workers={name: _series(WorkerSeries, rows) for name, rows in workers.items()},
    )


def _rows(samples: Sequence[Sequence[Any] | None], key: str) -> dict[str, list[Any]]:
    """Return the rows of each worker or model by its name, with None in samples without it."""
    found: dict[str, list[Any]] = {}
    for number, sample in enumerate(samples):
        for row in sample or ():
            rows = found.setdefault(getattr(row, key), [None] * len(samples))
            rows[number] = row
    return found


S = TypeVar("S", ModelSeries, WorkerSeries)
_AS_OF_LAST = ("model", "state", "high_watermark", "low_watermark")


def _series(kind: type[S], rows: Sequence[Any]) -> S:
    """Return the arrays of one worker or model; some fields have the latest value only."""
    last = next(row for row in reversed(rows) if row is not None)
    names = kind.__dataclass_fields__
    values: dict[str, Any] = {
        name: getattr(last, name) if name in _AS_OF_LAST else _column(rows, name) for name in names
    }
    return kind(**values)
