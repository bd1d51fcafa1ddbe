"""The charts of the Now page: gaps, bounded lines, and marks; and the sparklines of its table."""

from dataclasses import replace

import pytest

from fairserve.platform.background.alarms.recent import RecentChange
from fairserve.platform.console.charts import MOST_LINES
from fairserve.platform.console.tenant_rows import sparkline
from fairserve.platform.console.timeline import latest_marks, marks_of, timeline
from fairserve.platform.monitoring.live_snapshot import (
    ActivitySeries,
    ClusterSeries,
    LiveSnapshot,
    WorkerSeries,
)

AT = [1000.0, 1005.0, 1010.0]


def worker(used, demand=(None, None, None), **more):
    names = set(WorkerSeries.__dataclass_fields__) - {"model", "state"}
    nothing = WorkerSeries(model="m", state="serving", **dict.fromkeys(names, [None] * 3))
    return replace(
        nothing, kv_used_share=used, demand_tokens=demand, kv_capacity_tokens=[100] * 3, **more
    )


def snapshot(workers=None, overloaded=(False, False, False)):
    names = set(ActivitySeries.__dataclass_fields__) - {"refused", "ended"}
    activity = ActivitySeries(
        refused={"a": [0, 0, 5], "b": [10, 0, 0]}, ended={}, **{name: [20, 0, 5] for name in names}
    )
    others = set(ClusterSeries.__dataclass_fields__) - {"models", "workers"}
    cluster = ClusterSeries(models={}, workers=workers or {}, **dict.fromkeys(others, [0] * 3))
    return LiveSnapshot(None, 5.0, AT, list(overloaded), activity, [], [0] * 3, cluster)


def lines(chart):
    return {each["label"]: each["values"] for each in chart["series"]}


def test_calls_are_per_second_and_an_interruption_is_a_gap():
    calls = lines(timeline(snapshot(overloaded=(False, None, False)), [])["calls"])
    assert calls == {"accepted": [4.0, None, 1.0], "rejected": [2.0, None, 1.0]}


def test_the_fullest_workers_have_a_line_and_the_others_one_together():
    workers = {f"w{n}": worker([0.1 * n] * 3) for n in range(8)}
    workers["unreported"] = worker([None] * 3, [None, 90, 50])
    found = lines(timeline(snapshot(workers), [])["capacity"])
    named = {f"{name} (KV)" for name in ("unreported", "w4", "w5", "w6", "w7")}
    assert set(found) == {*named, "mean of 4 others"}
    assert len(found) == MOST_LINES + 1
    assert found["unreported (KV)"] == [None, 0.9, 0.5]
    assert found["mean of 4 others"] == [pytest.approx(0.15)] * 3


def test_the_line_of_a_worker_is_what_is_scarcest_there_and_names_it():
    workers = {
        "a": worker([0.2] * 3, sequences=[4, 8, 8], slots=[8] * 3),
        "b": worker([0.2] * 3, waiting_tokens=[0, 30, None], window_tokens=[50.0] * 3),
        "c": worker([0.9, 0.1, None], sequences=[1, 4, None], slots=[8, 8, None]),
        "d": worker([0.3] * 3, sequences=[9] * 3),
        "e": worker([None] * 3),
    }
    assert lines(timeline(snapshot(workers), [])["capacity"]) == {
        "a (slots)": [0.5, 1.0, 1.0],
        "b (KV)": [0.2, 0.6, 0.2],
        "c (slots)": [0.9, 0.5, None],
        "d (KV)": [0.3] * 3,
        "e (KV)": [None] * 3,
    }


def test_marks_are_the_latest_ones_that_the_reader_may_see():
    changes = [
        RecentChange(1004.0, "tn_1", "app_1", "limit 60 -> 6", "ops", False),
        RecentChange(1006.0, None, "", "hold_s 5 -> 6", "ops", False),
    ]

    def texts(tenant, since=1000.0):
        marks = marks_of([], [], changes, 1001.0, {"app_1": "chat"}, tenant)
        return [each["text"] for each in latest_marks(marks, since)]

    change = "chat: limit 60 -> 6 by "
    assert texts(None) == ["Server started", f"{change}ops", "hold_s 5 -> 6 by ops"]
    assert texts("tn_1", since=1002.0) == [f"{change}an operator"]
    assert texts("tn_2") == ["Server started"]


def test_a_sparkline_has_a_gap_where_a_value_is_not_known():
    assert sparkline([1.0, 2.0, None, 2.0]) == "M0.0,10.0L33.3,1.0M100.0,1.0"
    assert sparkline([]) == ""
