"""Charts of the workers over the last half hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairserve.platform.console.charts import Chart, series
from fairserve.platform.monitoring.live_snapshot import WorkerSeries

RATE_BUCKETS = 12
"""Number of samples in the moving window of the hit rate, one minute."""
RECENT_BUCKETS = 60


def hit_rates(workers: Mapping[str, WorkerSeries]) -> dict[str, float | None]:
    """Return the cached share of prompts in the last five minutes; None without prompts."""
    return {
        name: _share(each.prompt_tokens[-RECENT_BUCKETS:], each.cached_tokens[-RECENT_BUCKETS:])
        for name, each in workers.items()
    }


def charts_of(
    time: Sequence[float], workers: Mapping[str, WorkerSeries], names: Iterable[str]
) -> dict[str, Chart]:
    """Return the charts of used cache, calls and hit rate of the named workers."""
    shown = {name: workers[name] for name in sorted(names) if name in workers}
    return {
        "kv": {
            "time": time,
            "series": [series(name, _rounded(each.kv_used_share)) for name, each in shown.items()],
        },
        "calls": {
            "time": time,
            "series": [series(name, each.calls) for name, each in shown.items()],
        },
        "hits": {
            "time": time,
            "series": [series(name, _rolling(each)) for name, each in shown.items()],
        },
    }


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 4) for value in values]


def _rolling(worker: WorkerSeries) -> list[float | None]:
    """Return sums over a moving window, O(1) per point."""
    prompts = cached = 0.0
    found: list[float | None] = []
    for at in range(len(worker.prompt_tokens)):
        prompts += worker.prompt_tokens[at] or 0.0
        cached += worker.cached_tokens[at] or 0.0
        gone = at - RATE_BUCKETS
        if gone >= 0:
            prompts -= worker.prompt_tokens[gone] or 0.0
            cached -= worker.cached_tokens[gone] or 0.0
        found.append(round(cached / prompts, 4) if prompts else None)
    return found


def _share(prompts: Sequence[float | None], cached: Sequence[float | None]) -> float | None:
    tokens = sum(each or 0.0 for each in prompts)
    return sum(each or 0.0 for each in cached) / tokens if tokens else None
