"""Bounds and sweeps of the default against all systems fail when the figures disagree."""

import pytest
from shared_traces import shared_trace

from fairserve.benchmarks.reproduce.composition import unsaturated as unsaturated_module
from fairserve.benchmarks.reproduce.composition.ablation import ablation, earns, variants
from fairserve.benchmarks.reproduce.composition.comparison import (
    OTHERS,
    SUMMARY,
    claims,
    composition,
    losses,
    relative,
)
from fairserve.benchmarks.reproduce.composition.tuning import GRIDS, TUNED, tuned, tuning
from fairserve.benchmarks.reproduce.composition.unsaturated import TRACE, unsaturated
from fairserve.benchmarks.reproduce.composition.workloads import COLUMNS, OURS, WORKLOADS
from fairserve.benchmarks.reproduce.report import Row, Spread
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS

GOOD = {OURS: (100.0, 1.0, 0.95)} | dict.fromkeys(OTHERS, (90.0, 4.0, 0.90))
"""Tokens a second, tail and satisfaction of the least satisfied client in each of two cells."""


WITHIN_SHARE = "p99 TTFT within share (s)"
"""Figure that is missing where every client requests more than its share."""


def row(name, **figures):
    return Row(name, {column: Spread(v, v, v) for column, v in figures.items()})


def cells(**changes):
    """Return cells by system, from the figures in the second cell; names have underscores for dashes."""
    changed = {name.replace("_", "-"): figures for name, figures in changes.items()}
    rows = {}
    for cell in (("chat", 1), ("chat", 2)):
        for name, figures in (GOOD if cell[1] == 1 else GOOD | changed).items():
            throughput, tail, least = figures
            rows[cell, name] = row(
                name,
                **{
                    "tok/s": throughput,
                    "p99 TTFT (s)": tail,
                    "satisfied, least": least,
                },
            )
    return rows


def failed(checks):
    return [check.claim for check in checks if not check.holds]


def test_figures_within_the_bounds_pass():
    assert failed(claims(cells())) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"preble": (140.0, 4.0, 0.9)}, ["throughput, worst cell", "geometric mean"]),
        ({"vtc": (90.0, 0.35, 0.9)}, ["p99 TTFT of the well-behaved, worst", "mean"]),
        ({"fairserve": (100.0, 1.0, 0.85), "d2lpm": (90.0, 4.0, 0.91)}, ["every client satisfied"]),
        ({"rr_lpm": (101.0, 1.0, 0.95)}, ["rr-lpm is nowhere as good"]),
        ({"rr_lpm": (100.0, 0.9, 0.95)}, ["rr-lpm is nowhere as good"]),
        ({"rr_lpm": (100.0, 1.0, 0.99)}, ["rr-lpm is nowhere as good"]),
    ],
)
def test_a_bound_fails_on_disagreeing_figures(change, words):
    wrong = failed(claims(cells(**change)))
    assert wrong
    for word in words:
        assert any(word in claim for claim in wrong), (word, wrong)


@pytest.mark.parametrize(
    "mixed", [(120.0, 1.1, 0.95), (98.0, 0.5, 0.99), (120.0, 0.9, 0.93), (100.0, 1.0, 0.95)]
)
def test_better_in_one_figure_and_worse_in_another_is_no_dominance(mixed):
    wrong = failed(claims(cells(rr_lpm=mixed)))
    assert not any("rr-lpm" in claim for claim in wrong)


def test_losses_against_other_systems_are_reported():
    assert losses(cells()) == []
    assert losses(cells(vtc=(130.0, 4.0, 0.9), preble=(110.0, 0.5, 0.9))) == [
        "Loses in tok/s in chat D=2, of its own: vtc 1.30, preble 1.10.",
        "Loses in p99 TTFT (s) in chat D=2, of its own: preble 0.50.",
    ]


def test_satisfaction_is_not_required_where_no_system_reaches_it():
    nobody = cells(**{name.replace("-", "_"): (90.0, 4.0, 0.8) for name in (*OTHERS, OURS)})
    assert not any("satisfied" in claim for claim in failed(claims(nobody)))


def test_ratios_are_relative_to_the_best_of_each_cell():
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
        assert {column.name for column in COLUMNS} - set(of_cell.measured) <= {WITHIN_SHARE}
        assert of_cell.measured["tok/s"].value > 0
    assert [(tmp_path / name).stat().st_size > 10_000 for name in summary.plots] == [True]


def ratios(*values):
    """Return the ratios of two seeds in one cell."""
    names = ("tok/s", "p99 TTFT (s)", "satisfied, least")
    return [dict(zip(names, ([v] for v in of_seed), strict=True)) for of_seed in values]


@pytest.mark.parametrize(
    ("of_seeds", "worse"),
    [
        (ratios((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)), "nothing"),
        (ratios((0.9, 1.0, 1.0), (0.7, 0.9, 1.1)), "tok/s 0.80 times in chat D=1"),
        (ratios((0.9, 1.0, 1.0), (1.1, 0.9, 1.0)), "nothing"),
        (ratios((1.0, 1.2, 0.5), (1.0, 1.4, 1.0)), "p99 TTFT (s) 1.30 times in chat D=1"),
        (ratios((1.0, 1.0, 0.5), (1.0, 1.0, 0.9)), "satisfied, least 0.70 times in chat D=1"),
    ],
)
def test_a_mechanism_is_needed_if_something_is_worse_without_it(of_seeds, worse):
    check = earns("x", [("chat", 1)], of_seeds)
    assert (check.holds, check.seen) == (worse != "nothing", worse)


def test_a_system_that_is_not_saturated_does_not_queue():
    folder = shared_trace(TRACE).parent
    report = unsaturated(Setting(traces=folder, seeds=1, scale=0.1))
    assert failed(report.checks) == []
    by_name = {each.name: each.measured for each in report.rows}
    assert by_name["fcfs"]["p99 TTFT (s)"].value < 2.0


def test_queueing_despite_free_capacity_is_detected(monkeypatch):
    """With a window of one call some wait at the feeder while workers have capacity."""
    folder = shared_trace(TRACE).parent
    queueing = SYSTEMS["fairserve"].with_options({"feed_window": 1e-6})
    monkeypatch.setattr(unsaturated_module, "SYSTEMS", {**dict(SYSTEMS), "fairserve": queueing})
    monkeypatch.setattr(unsaturated_module, "LOAD", 0.9)
    report = unsaturated(Setting(traces=folder, seeds=1, scale=0.1))
    assert failed(report.checks) == ["fairserve: p99 TTFT at most 1.05 times that of fcfs"]


@pytest.mark.deep
def test_each_mechanism_has_a_row(tmp_path):
    folder = shared_trace("tau_airline_gpt4o.jsonl.gz").parent
    summary, each = ablation(Setting(traces=folder, seeds=1, scale=0.1), workers=(1,))
    names = [r.name for r in summary.rows]
    assert names == list(variants())
    assert {value.value for value in summary.rows[0].measured.values()} == {1.0}
    assert len(each.rows) == len(WORKLOADS) * len(names)


def test_the_best_settings_are_within_their_grids():
    assert set(TUNED) == set(GRIDS)
    for name, options in TUNED.items():
        assert options in GRIDS[name]
        assert tuned(name).router == SYSTEMS[name].router


def test_the_best_setting_of_a_grid_is_found():
    grids = {"vtc": [{}, {"local.predict": "mean"}]}
    report = tuning(Setting(seeds=1, scale=0.02), grids, ["chat"])
    products = [r.measured["product"].value for r in report.rows]
    [check] = report.checks
    assert check.seen.startswith(report.rows[products.index(max(products))].name)
