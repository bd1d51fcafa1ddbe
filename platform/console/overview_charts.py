"""Charts of the overview page, from a snapshot of the last minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairserve.platform.console.charts import Chart, series
from fairserve.platform.monitoring.live_snapshot import LiveSnapshot, Series

NAME_CHARS = 28


def service(live: LiveSnapshot, names: Mapping[str, str]) -> Chart:
    """Return the service per second of the clients with most service and of all others."""
    lines = [
        series(
            _client(each.user, names.get(each.app, each.app)), _rate(each.service, live.bucket_s)
        )
        for each in live.clients
    ]
    if any(live.other_clients):
        lines.append(series("all others", _rate(live.other_clients, live.bucket_s)))
    return {"time": live.at, "series": lines}


def calls(live: LiveSnapshot) -> Chart:
    """Return running and queued calls."""
    return {
        "time": live.at,
        "series": [
            series("running", live.activity.running_calls),
            series("queued", live.activity.queued_calls),
        ],
    }


def waits(live: LiveSnapshot) -> Chart:
    """Return the median and 99th percentile of queue delays."""
    return {
        "time": live.at,
        "series": [
            series("p50", live.activity.queue_p50_s),
            series("p99", live.activity.queue_p99_s),
        ],
    }


def jain(live: LiveSnapshot) -> Chart:
    """Return Jain's index per five seconds."""
    values = live.activity.jain_index
    return {"time": live.at, "series": [series("Jain's index", values)], "top": 1.02}


def runs(live: LiveSnapshot) -> Chart:
    """Return the interactions in progress; without that figure, those started and ended."""
    if live.cluster is not None:
        return {"time": live.at, "series": [series("in progress", live.cluster.live_interactions)]}
    return {
        "time": live.at,
        "series": [
            series("begun", live.activity.runs_begun),
            series("ended", live.activity.runs_ended),
        ],
    }


def ended(live: LiveSnapshot) -> Chart:
    """Return ended calls by outcome, per bucket."""
    named = live.activity.ended.items()
    return {
        "time": live.at,
        "series": [series(name, values) for name, values in named],
        "stacked": True,
    }


def kv(live: LiveSnapshot) -> Chart:
    """Return the used share of each worker's KV cache."""
    workers = live.cluster.workers if live.cluster else {}
    return {
        "time": live.at,
        "series": [series(name, each.kv_used_share) for name, each in sorted(workers.items())],
        "top": 1.02,
    }


def hits(live: LiveSnapshot) -> Chart:
    """Return the cached share of prompt tokens of ended calls by worker, over one minute."""
    workers = live.cluster.workers if live.cluster else {}
    last = max(1, round(60 / live.bucket_s))
    return {
        "time": live.at,
        "series": [
            series(name, share_over(each.cached_tokens, each.prompt_tokens, last))
            for name, each in sorted(workers.items())
        ],
        "top": 1.02,
    }


def share_over(parts: Series, wholes: Series, last: int) -> Series:
    """Return the ratio of sums over the last entries; None if the denominator is 0."""
    found: Series = []
    part = whole = 0.0
    for at, (one, other) in enumerate(zip(parts, wholes, strict=True)):
        part += one or 0.0
        whole += other or 0.0
        if at >= last:
            part -= parts[at - last] or 0.0
            whole -= wholes[at - last] or 0.0
        found.append(part / whole if whole > 0 else None)
    return found


def _rate(values: Sequence[float | None], bucket_s: float) -> Series:
    return [None if each is None else round(each / bucket_s, 3) for each in values]


def _client(user: str, app: str) -> str:
    text = f"{user} ({app})"
    return text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 1]}…"
