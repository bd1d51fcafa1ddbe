"""Charts as the pages' script expects them: of the overview, and of the workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, NotRequired, TypedDict, cast

from fairserve.platform.monitoring.live_snapshot import LiveSnapshot, WorkerSeries
from fairserve.platform.monitoring.live_snapshot import Series as Values

NAME_CHARS = 28
RATE_BUCKETS = 12
"""Number of samples in the moving window of the hit rate, one minute."""
RECENT_BUCKETS = 60
"""Number of samples in five minutes."""


class Series(TypedDict):
    """A line or a layer of bars."""

    label: str
    values: Sequence[float | None]


class Limit(TypedDict):
    """A horizontal line."""

    label: str
    value: float


class Chart(TypedDict):
    """One chart; ``time`` is in UTC epoch seconds."""

    time: Sequence[float]
    series: list[Series]
    stacked: NotRequired[bool]
    bars: NotRequired[bool]
    limits: NotRequired[list[Limit]]
    top: NotRequired[float]
    """End of the axis; by default slightly above the highest value."""


def chart(
    time: Sequence[float], lines: Iterable[tuple[str, Sequence[float | None]]], **options: Any
) -> Chart:
    """Return a chart of labels with their values, and with the ``options`` of :class:`Chart`."""
    series = [{"label": label, "values": values} for label, values in lines]
    return cast("Chart", {"time": time, "series": series, **options})


def at(day: date) -> float:
    """Return the position of a day on the time axis, its noon."""
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()


def of_overview(live: LiveSnapshot, names: Mapping[str, str]) -> dict[str, Chart]:
    """Return the charts of the overview; a tenant's snapshot has no workers and no runs in progress."""
    activity, cluster = live.activity, live.cluster
    service = [
        (_client(each.user, names.get(each.app, each.app)), _rate(each.service, live.bucket_s))
        for each in live.clients
    ]
    if any(live.other_clients):
        service.append(("all others", _rate(live.other_clients, live.bucket_s)))
    runs = [("begun", activity.runs_begun), ("ended", activity.runs_ended)]
    if cluster is not None:
        runs = [("in progress", cluster.live_interactions)]
    calls = [("running", activity.running_calls), ("queued", activity.queued_calls)]
    waits = [("p50", activity.queue_p50_s), ("p99", activity.queue_p99_s)]
    found = {
        "service": chart(live.at, service),
        "calls": chart(live.at, calls),
        "waits": chart(live.at, waits),
        "jain": chart(live.at, [("Jain's index", activity.jain_index)], top=1.02),
        "runs": chart(live.at, runs),
    }
    if cluster is None:
        return {**found, "ended": chart(live.at, activity.ended.items(), stacked=True)}
    of_all = of_workers(live.at, cluster.workers, cluster.workers)
    return {**found, **{name: {**of_all[name], "top": 1.02} for name in ("kv", "hits")}}


def of_workers(
    time: Sequence[float], workers: Mapping[str, WorkerSeries], names: Iterable[str]
) -> dict[str, Chart]:
    """Return the charts of used cache, calls and hit rate over one minute of the named workers."""
    shown = {name: workers[name] for name in sorted(names) if name in workers}
    hits = [
        (name, share_over(each.cached_tokens, each.prompt_tokens, RATE_BUCKETS))
        for name, each in shown.items()
    ]
    return {
        "kv": chart(time, [(name, each.kv_used_share) for name, each in shown.items()]),
        "calls": chart(time, [(name, each.calls) for name, each in shown.items()]),
        "hits": chart(time, hits),
    }


def hit_rates(workers: Mapping[str, WorkerSeries]) -> dict[str, float | None]:
    """Return the cached share of prompts in the last five minutes; None without prompts."""
    shares = {
        name: share_over(each.cached_tokens, each.prompt_tokens, RECENT_BUCKETS)
        for name, each in workers.items()
    }
    return {name: each[-1] if each else None for name, each in shares.items()}


def share_over(parts: Values, wholes: Values, last: int) -> Values:
    """Return the ratio of sums over the last entries, O(1) each; None if the denominator is 0."""
    found: Values = []
    part = whole = 0.0
    for at, (one, other) in enumerate(zip(parts, wholes, strict=True)):
        part += one or 0.0
        whole += other or 0.0
        if at >= last:
            part -= parts[at - last] or 0.0
            whole -= wholes[at - last] or 0.0
        found.append(part / whole if whole > 0 else None)
    return found


def _rate(values: Sequence[float | None], bucket_s: float) -> Values:
    return [None if each is None else round(each / bucket_s, 3) for each in values]


def _client(user: str, app: str) -> str:
    text = f"{user} ({app})"
    return text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 1]}…"
