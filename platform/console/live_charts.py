"""Charts of the last minutes, and their event stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import orjson

from fairserve.platform.console.charts import Chart, Limit, chart, few_lines
from fairserve.platform.console.streams import KEEP_ALIVE, event, latest
from fairserve.platform.monitoring.history import History
from fairserve.platform.monitoring.live_snapshot import LiveSnapshot, ModelSeries

POLL_INTERVAL_S = 2.0


def load_chart(snapshot: LiveSnapshot) -> Chart:
    """Return the demand over KV capacity of each model, with the overload watermarks.

    A tenant's snapshot has no load, so the chart is empty.
    """
    models = {} if snapshot.cluster is None else snapshot.cluster.models
    one = len(models) == 1
    lines = few_lines({"load" if one else name: _load(model) for name, model in models.items()})
    limits = [
        *_limits("start of an overload", [each.high_watermark for each in models.values()]),
        *_limits("end of an overload", [each.low_watermark for each in models.values()]),
    ]
    return chart(snapshot.at, lines, limits=limits)


def rejections_chart(snapshot: LiveSnapshot) -> Chart:
    """Return the rejected calls per bucket by reason."""
    refused = snapshot.activity.refused
    layers = {name.replace("_", " "): counts for name, counts in refused.items() if any(counts)}
    if not layers:
        layers["rejected"] = [0.0] * len(snapshot.at)
    lines = few_lines(layers, total=True)
    return chart(snapshot.at, lines, stacked=True, bars=True)


async def chart_events(
    history: History, draw: Callable[[], Mapping[str, Chart]]
) -> AsyncIterator[bytes]:
    """Yield the event ``charts`` with each new sample, as a source for :func:`streams.stream`."""
    with latest(history.subscribe) as updates:
        while True:
            yield event("charts", orjson.dumps(draw()))
            while await updates.next(POLL_INTERVAL_S) is None:
                yield KEEP_ALIVE


def _load(model: ModelSeries) -> list[float | None]:
    pairs = zip(model.demand_tokens, model.capacity_tokens, strict=True)
    return [
        None if demand is None or not capacity else demand / capacity for demand, capacity in pairs
    ]


def _limits(label: str, values: Sequence[float]) -> list[Limit]:
    return [{"label": label, "value": value} for value in dict.fromkeys(values)]
