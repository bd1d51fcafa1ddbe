"""The default beside all systems: its bounds and sweeps fail where the figures say otherwise."""

import pytest
from shared_traces import shared_trace

from fairserve.platform.reproduce.composition.comparison import (
    OTHERS,
    SUMMARY,
    claims,
    composition,
    relative,
)
from fairserve.platform.reproduce.composition.sensitivity import (
    COLUMNS as SWEPT,
)
from fairserve.platform.reproduce.composition.sensitivity import (
    SWEEPS,
    WATERMARKS,
    default_of,
    late_enough,
    recommended,
    sensitivity,
)
from fairserve.platform.reproduce.composition.workloads import COLUMNS, OURS, WORKLOADS
from fairserve.platform.reproduce.report import Row, Spread
from fairserve.platform.reproduce.setting import Setting
from fairserve.platform.settings import Settings
from fairserve.platform.throttling.parameters import describe

GOOD = {OURS: (100.0, 1.0, 0.95)} | dict.fromkeys(OTHERS, (90.0, 4.0, 0.90))
"""Tokens a second, tail and Jain's index in each of two cells."""


def row(name, **figures):
    return Row(name, {column: Spread(v, v, v) for column, v in figures.items()})


def cells(**changes):
    """By name of a system with an underscore for every dash: its figures in the second cell."""
    changed = {name.replace("_", "-"): figures for name, figures in changes.items()}
    rows = {}
    for cell in (("chat", 1), ("chat", 2)):
        for name, figures in (GOOD if cell[1] == 1 else GOOD | changed).items():
            throughput, tail, jain = figures
            rows[cell, name] = row(
                name,
                **{
                    "tok/s": throughput,
                    "p99 TTFT (s)": tail,
                    "Jain entitled": jain,
                    "Jain extend": jain,
                },
            )
    return rows


def failed(checks):
    return [check.claim for check in checks if not check.holds]


def test_figures_within_the_bounds_hold():
    assert failed(claims(cells())) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"preble": (140.0, 4.0, 0.9)}, ["throughput, worst cell", "geometric mean"]),
        ({"vtc": (90.0, 0.35, 0.9)}, ["p99 TTFT of the well-behaved, worst", "mean"]),
        ({"fairserve": (100.0, 1.0, 0.7), "d2lpm": (90.0, 4.0, 0.6)}, ["Jain's index"]),
        ({"rr_lpm": (101.0, 4.0, 0.97)}, ["rr-lpm nowhere beats"]),
    ],
)
def test_a_bound_fails_where_the_figures_say_otherwise(change, words):
    wrong = failed(claims(cells(**change)))
    assert wrong
    for word in words:
        assert any(word in claim for claim in wrong), (word, wrong)


def test_ratios_are_to_the_best_of_each_cell():
    ratios = relative(cells(vtc=(50.0, 0.5, 0.9)))
    assert ratios[OURS]["tok/s"] == [1.0, 1.0]
    assert ratios[OURS]["p99 TTFT (s)"] == [1.0, 2.0]
    assert ratios["vtc"]["tok/s"] == [0.9, 0.5]
    assert ratios["vtc"]["p99 TTFT (s)"] == [4.0, 1.0]


@pytest.mark.deep
def test_every_cell_has_a_row_for_each_system(tmp_path):
    folder = shared_trace("tau_airline_gpt4o.jsonl.gz").parent
    setting = Setting(traces=folder, seeds=1, scale=0.15, plots=tmp_path)
    summary, each = composition(setting, workers=(1,))
    assert [r.name for r in summary.rows] == [*OTHERS, OURS]
    assert set(summary.rows[0].measured) == {column.name for column in SUMMARY}
    assert len(each.rows) == len(WORKLOADS) * (len(OTHERS) + 1)
    for of_cell in each.rows:
        assert set(of_cell.measured) == {column.name for column in COLUMNS}
        assert of_cell.measured["tok/s"].value > 0
    assert [(tmp_path / name).stat().st_size > 10_000 for name in summary.plots] == [True]


def swept(throughput, tail, jain=0.9):
    return row("x", **dict(zip((c.name for c in SWEPT), (throughput, tail, jain), strict=True)))


@pytest.mark.parametrize(
    ("other", "better"),
    [
        (swept(1.05, 1.3), False),
        (swept(1.05, 1.0), True),
        (swept(0.99, 0.8), True),
        (swept(0.9, 0.5), False),
        (swept(1.5, 0.5, jain=0.8), False),
    ],
)
def test_a_default_is_recommended_unless_another_value_is_better(other, better):
    check = recommended("feed_window", {"1": other, "2": swept(1.0, 1.0)}, swept(1.0, 1.0))
    assert check.holds != better
    assert check.seen.startswith("1 (" if better else "none")


def test_the_defaults_are_those_that_are_served():
    served = {each.name: each.value for each in describe(Settings(), OURS, {})}
    for parameter, values in (SWEEPS | WATERMARKS).items():
        assert default_of(parameter) == served[parameter]
        assert default_of(parameter) in values


def mix_row(delayed, precision=100.0):
    return row("x", **{"users delayed %": delayed, "abusers among throttled %": precision})


def test_a_watermark_is_recommended_unless_another_delays_fewer():
    rows = {"1.5": mix_row(9.5), "2": mix_row(10.0)}
    assert late_enough(rows).holds
    assert not late_enough(rows | {"1.5": mix_row(5.0)}).holds
    assert late_enough(rows | {"1.5": mix_row(5.0, precision=90.0)}).holds
    assert not late_enough(rows | {"2": mix_row(10.0, precision=90.0)}).holds


@pytest.mark.deep
def test_a_sweep_has_a_row_for_each_value(tmp_path):
    folder = shared_trace("tau_airline_gpt4o.jsonl.gz").parent
    setting = Setting(traces=folder, seeds=1, scale=0.1, plots=tmp_path)
    first, second = sensitivity(setting, {"feed_window": (0.01, 0.03)})
    assert [r.name for r in first.rows] == ["default", "feed_window=0.01"]
    assert [value.value for value in first.rows[0].measured.values()][:2] == [1.0, 1.0]
    assert len(second.rows) == len(WATERMARKS["high_watermark"])
    for name in (*first.plots, *second.plots):
        assert (tmp_path / name).stat().st_size > 10_000
