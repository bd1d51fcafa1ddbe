"""Ablation and tuning, and what they check."""

import pytest

from fairserve.benchmarks.reproduce.default import tuning
from fairserve.benchmarks.reproduce.default.ablation import (
    DEFAULT,
    earns,
    reports_of,
    summary_of,
    variants,
)
from fairserve.benchmarks.reproduce.default.cells import chat
from fairserve.benchmarks.reproduce.default.headline import TUNED
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS


def failed(checks):
    return [check.claim for check in checks if not check.holds]


def relative(*of_seeds):
    """Return the figures of two seeds in one cell: throughput, least satisfied part and tail."""
    names = ("tok/s in time", "least satisfied", "tail (s)")
    return [dict(zip(names, ([v] for v in values), strict=True)) for values in of_seeds]


@pytest.mark.parametrize(
    ("of_seeds", "worse"),
    [
        (relative((1.0, 0.0, 1.0), (1.0, 0.0, 1.0)), "nothing"),
        (relative((0.9, 0.0, 1.0), (0.7, 0.1, 0.9)), "tok/s in time by 0.20 in chat"),
        (relative((0.7, 0.0, 1.0), (1.1, 0.0, 0.9)), "nothing"),
        (relative((0.99, -0.01, 1.02), (0.98, -0.02, 1.03)), "nothing"),
        (relative((1.0, 0.0, 1.2), (1.0, 0.0, 1.4)), "tail (s) by 0.30 in chat"),
        (relative((1.0, -0.5, 1.0), (1.0, -0.1, 1.0)), "least satisfied by 0.30 in chat"),
    ],
)
def test_a_mechanism_is_needed_if_something_is_clearly_worse_without_it(of_seeds, worse):
    check = earns("x", ["chat"], of_seeds)
    assert (check.holds, check.seen) == (worse != "nothing", worse)


def test_a_variant_is_compared_with_the_default_under_the_same_seed():
    """On two processes, so that jobs must be sent to others."""
    setting = Setting(seeds=2, scale=0.05, processes=2)
    systems = {DEFAULT: variants()[DEFAULT], "fcfs": SYSTEMS["fcfs"]}
    summary, each = reports_of(setting, {"chat": chat(setting)}, systems)
    default, fcfs = summary.rows
    assert {column: seen.value for column, seen in default.measured.items()} == {
        "tok/s in time": 1.0,
        "worst cell": 1.0,
        "tail": 1.0,
        "its worst cell": 1.0,
        "least satisfied": 0.0,
        "its worst change": 0.0,
    }
    assert fcfs.measured["tail"].value != 1.0
    assert [row.name for row in each.rows] == ["chat: default", "chat: fcfs"]


def test_a_variant_that_does_nothing_in_time_in_some_cell_has_a_mean():
    nothing = {"tok/s in time": [0.0, 1.0], "least satisfied": [-1.0, 0.0], "tail (s)": [2.0, 1.0]}
    assert summary_of(nothing)["work"] == pytest.approx(0.1)
    assert summary_of(nothing)["work_worst"] == 0.0


def test_the_best_settings_are_within_their_grids():
    assert set(TUNED) == set(tuning.GRIDS)
    for name, options in TUNED.items():
        assert options in tuning.GRIDS[name]


def test_the_best_setting_of_a_grid_is_found():
    grids = {"vtc": [{}, {"local.predict": "mean"}]}
    setting = Setting(seeds=1, scale=0.02)
    report = tuning.tuning_of(setting, {"chat": chat(setting)}, grids)
    products = [r.measured["product"].value for r in report.rows]
    [check] = report.checks
    assert check.seen.startswith(report.rows[products.index(max(products))].name)
