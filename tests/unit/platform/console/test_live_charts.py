"""Test the live charts: load against its watermarks, and rejections by reason."""

import asyncio
import json

from fairserve.platform.console import live_charts
from fairserve.platform.console.live_charts import chart_events, load_chart, rejections_chart
from fairserve.platform.monitoring.live_snapshot import (
    ActivitySeries,
    ClusterSeries,
    LiveSnapshot,
    ModelSeries,
)

AT = [1000.0, 1005.0, 1010.0]


def snapshot(refused=None, models=None, at=AT):
    nothing = [0] * len(at)
    names = set(ActivitySeries.__dataclass_fields__) - {"refused", "ended"}
    activity = ActivitySeries(refused=refused or {}, ended={}, **dict.fromkeys(names, nothing))
    cluster = None
    if models is not None:
        others = set(ClusterSeries.__dataclass_fields__) - {"models", "workers"}
        cluster = ClusterSeries(models=models, workers={}, **dict.fromkeys(others, nothing))
    return LiveSnapshot(
        tenant=None if cluster else "tn_1",
        bucket_s=5.0,
        at=list(at),
        overloaded=[False] * len(at),
        activity=activity,
        clients=[],
        other_clients=nothing,
        cluster=cluster,
    )


def model(demand, capacity, high=2.0, low=1.2):
    nothing = [0] * len(demand)
    return ModelSeries(high, low, [False] * len(demand), demand, capacity, nothing, nothing)


def test_load_is_demand_over_capacity():
    chart = load_chart(snapshot(models={"m": model([50, None, 300], [100, None, 200])}))
    assert chart["time"] == AT
    assert chart["series"] == [{"label": "load", "values": [0.5, None, 1.5]}]
    assert chart["limits"] == [
        {"label": "start of an overload", "value": 2.0},
        {"label": "end of an overload", "value": 1.2},
    ]


def test_load_is_unknown_without_workers():
    (line,) = load_chart(snapshot(models={"m": model([50, 0, 3], [0, 0, 0])}))["series"]
    assert line["values"] == [None, None, None]


def test_models_are_drawn_by_name_and_equal_watermarks_once():
    models = {"a": model([1, 1, 1], [2, 2, 2]), "b": model([1, 1, 1], [4, 4, 4], high=3.0)}
    chart = load_chart(snapshot(models=models))
    assert [each["label"] for each in chart["series"]] == ["a", "b"]
    assert [each["value"] for each in chart["limits"]] == [2.0, 3.0, 1.2]


def test_a_tenant_sees_no_load():
    assert load_chart(snapshot())["series"] == []


def test_rejections_are_stacked_by_reason():
    refused = {"app_limit": [1, 0, 0], "gone": [0, 0, 0], "user_limit": [None, 2, 1]}
    chart = rejections_chart(snapshot(refused))
    assert chart["stacked"]
    assert chart["series"] == [
        {"label": "app limit", "values": [1, 0, 0]},
        {"label": "user limit", "values": [None, 2, 1]},
    ]


def test_rare_reasons_are_one_layer_with_their_total():
    refused = {f"limit_{number}": [number, None, 0] for number in range(1, 8)}
    found = rejections_chart(snapshot(refused))["series"]
    assert [each["label"] for each in found] == [
        *(f"limit {number}" for number in range(3, 8)),
        "total of 2 others",
    ]
    assert found[-1]["values"] == [1 + 2, None, 0]


def test_without_rejections_the_line_is_zero():
    assert rejections_chart(snapshot())["series"] == [{"label": "rejected", "values": [0.0] * 3}]
    assert rejections_chart(snapshot(at=[]))["series"] == [{"label": "rejected", "values": []}]


async def test_charts_are_sent_at_each_new_sample(monkeypatch):
    monkeypatch.setattr(live_charts, "POLL_INTERVAL_S", 0.01)
    listeners = []

    class Samples:
        def subscribe(self, listener):
            listeners.append(listener)
            return listeners.clear

    drawn = iter(range(9))
    events = chart_events(Samples(), lambda: {"load": next(drawn)})

    async def charts():
        async for piece in events:
            if piece.startswith(b"event: charts"):
                return json.loads(piece.partition(b"data: ")[2])
        return None

    assert await charts() == {"load": 0}
    assert (await anext(events)).startswith(b":"), "it says that it is still here"
    asyncio.get_running_loop().call_later(0.05, lambda: listeners[0]("a sample"))
    assert await charts() == {"load": 1}
    await events.aclose()
    assert listeners == [], "the listener is removed"
