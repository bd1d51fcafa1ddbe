"""Charts of the Now page on one time axis, with marks of what happened: waits, calls, capacity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fairserve.platform.background.alarms.recent import RecentChange
from fairserve.platform.background.alarms.schemas import AlarmOut
from fairserve.platform.console.charts import Chart, Mark, chart, few_lines
from fairserve.platform.console.incidents import title_of
from fairserve.platform.monitoring.live_snapshot import LiveSnapshot, Series, WorkerSeries

MOST_MARKS = 12


def timeline(live: LiveSnapshot, marks: Sequence[Mark]) -> dict[str, Chart]:
    """Return the charts by name; a tenant's snapshot has no workers, so it has its calls instead."""
    activity, cluster = live.activity, live.cluster
    known = [each is not None for each in live.overloaded]  # else nothing was sampled: a gap
    calls = [
        ("accepted", _rate(activity.accepted, known, live.bucket_s)),
        ("rejected", _rate(_sum(activity.refused.values(), len(known)), known, live.bucket_s)),
    ]
    waits = [("p50", activity.queue_p50_s), ("p99", activity.queue_p99_s)]
    if cluster is not None:
        of_models = [model.expected_wait_s for model in cluster.models.values()]
        waits.append(("expected for a new call", _largest(of_models, len(live.at))))
        last = chart(live.at, _capacity(cluster.workers))
    else:
        in_progress = [("running", activity.running_calls), ("queued", activity.queued_calls)]
        last = chart(live.at, in_progress)
    found = {"waits": chart(live.at, waits), "calls": chart(live.at, calls), "capacity": last}
    return {name: {**each, "marks": marks} for name, each in found.items()}


def marks_of(
    alarms: Sequence[AlarmOut],
    resolved: Sequence[AlarmOut],
    changes: Sequence[RecentChange],
    started: float,
    names: Mapping[str, str],
    tenant: str | None,
) -> Iterator[Mark]:
    """Yield what happened to what a tenant sees, or to all, in no order; times in UTC epoch seconds."""
    yield Mark(at=started, text="Server started", tone="")
    for alarm in (*alarms, *resolved):
        title = title_of(alarm, names)
        yield Mark(at=alarm.opened_at.timestamp(), text=f"Alarm: {title}", tone=alarm.severity)
        if alarm.resolved_at is not None:
            yield Mark(at=alarm.resolved_at.timestamp(), text=f"Resolved: {title}", tone="good")
    for change in changes:
        if tenant is None or change.tenant == tenant:
            who = change.by if tenant is None or change.by_tenant else "an operator"
            of = f"{names.get(change.target, change.target)}: " if change.target else ""
            yield Mark(at=change.at, text=f"{of}{change.text} by {who}", tone="")


def latest_marks(marks: Iterable[Mark], since: float) -> list[Mark]:
    """Return the latest marks since a time, the earliest first."""
    recent = sorted((each for each in marks if each["at"] >= since), key=lambda each: each["at"])
    return recent[-MOST_MARKS:]


def _capacity(workers: Mapping[str, WorkerSeries]) -> list[tuple[str, Series]]:
    """Return the share in use of each worker's capacity, of the fullest ones by name.

    Of each the scarcest of the three that calls wait for (:mod:`fairserve.scheduling.dispatch.backlog`):
    its memory, its slots, and the window of calls that wait at it. The line names the last scarcest one.
    """
    shares = {name: _shares(worker) for name, worker in workers.items()}
    return few_lines(
        {
            f"{name} ({_binding(own)})": _largest(list(own.values()), len(own["KV"]))
            for name, own in shares.items()
        }
    )


def _shares(worker: WorkerSeries) -> dict[str, Series]:
    """Return the share in use of each thing that a call needs at a worker; None if it is unknown.

    Of its KV cache: the reported share, else that of the demand of its calls.
    """
    demand = _ratio(worker.demand_tokens, worker.kv_capacity_tokens)
    pairs = zip(worker.kv_used_share, demand, strict=True)
    return {
        "KV": [own if reported is None else reported for reported, own in pairs],
        "slots": _ratio(worker.sequences, worker.slots),
        "queue": _ratio(worker.waiting_tokens, worker.window_tokens),
    }


def _binding(shares: Mapping[str, Series]) -> str:
    """Return which is the scarcest in the last known sample; the first of equals."""
    for now in reversed(list(zip(*shares.values(), strict=True))):
        known = {name: each for name, each in zip(shares, now, strict=True) if each is not None}
        if known:
            return max(known, key=known.__getitem__)
    return "KV"


def _ratio(used: Series, most: Series) -> Series:
    pairs = zip(used, most, strict=True)
    return [each / limit if each is not None and limit else None for each, limit in pairs]


def _largest(rows: Sequence[Series], length: int) -> Series:
    if not rows:
        return [None] * length
    known = ([each for each in column if each is not None] for column in zip(*rows, strict=True))
    return [max(each, default=None) for each in known]


def _sum(rows: Iterable[Series], length: int) -> Series:
    found = [0.0] * length
    for row in rows:
        found = [total + (each or 0.0) for total, each in zip(found, row, strict=True)]
    return list(found)


def _rate(values: Series, known: Sequence[bool], bucket_s: float) -> Series:
    return [
        round(each / bucket_s, 3) if sampled and each is not None else None
        for each, sampled in zip(values, known, strict=True)
    ]
