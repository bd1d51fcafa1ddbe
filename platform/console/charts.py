"""Charts as the pages' script expects them, and those of the workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, NotRequired, TypedDict, cast

from fairserve.platform.monitoring.live_snapshot import Series as Values
from fairserve.platform.monitoring.live_snapshot import WorkerSeries

RATE_BUCKETS = 12
"""Number of samples in the moving window of the hit rate, one minute."""
RECENT_BUCKETS = 60
"""Number of samples in five minutes."""
MOST_LINES = 5
"""Lines of a chart by name; the others are one."""


class Series(TypedDict):
    """A line or a layer of bars."""

    label: str
    values: Sequence[float | None]


class Limit(TypedDict):
    """A horizontal line."""

    label: str
    value: float


class Mark(TypedDict):
    """A vertical line with a number, and its text in the list of events below the charts."""

    at: float
    text: str
    tone: str


class Chart(TypedDict):
    """One chart; ``time`` is in UTC epoch seconds."""

    time: Sequence[float]
    series: list[Series]
    stacked: NotRequired[bool]
    bars: NotRequired[bool]
    days: NotRequired[bool]
    """True if each time is a day as the report counts it, by :func:`at`."""
    limits: NotRequired[list[Limit]]
    marks: NotRequired[Sequence[Mark]]
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


def few_lines(lines: Mapping[str, Values], *, total: bool = False) -> list[tuple[str, Values]]:
    """Return the highest lines by name, and the mean of the others as one, with ``total`` their sum."""
    highest = sorted(lines, key=lambda name: (-sum(each or 0.0 for each in lines[name]), name))
    shown = [(name, lines[name]) for name in sorted(highest[:MOST_LINES])]
    others = [lines[name] for name in highest[MOST_LINES:]]
    if others:
        word = "total" if total else "mean"
        label = f"{word} of {len(others)} other{'s' if len(others) > 1 else ''}"
        shown.append((label, [_joined(column, total) for column in zip(*others, strict=True)]))
    return shown


def _joined(values: Sequence[float | None], total: bool) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / (1 if total else len(known)) if known else None


def of_workers(time: Sequence[float], workers: Mapping[str, WorkerSeries]) -> dict[str, Chart]:
    """Return the charts of used cache, calls and hit rate over one minute of workers."""
    lines = {
        "kv": {name: each.kv_used_share for name, each in workers.items()},
        "calls": {name: each.calls for name, each in workers.items()},
        "hits": {
            name: share_over(each.cached_tokens, each.prompt_tokens, RATE_BUCKETS)
            for name, each in workers.items()
        },
    }
    return {name: chart(time, few_lines(own)) for name, own in lines.items()}


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
