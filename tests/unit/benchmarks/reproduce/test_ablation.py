"""Ablation and tuning, and what they check."""

import pytest

from fairserve.benchmarks.reproduce.default import tuning
from fairserve.benchmarks.reproduce.default.ablation import (
    earns,
    summary_of,
)
from fairserve.benchmarks.reproduce.default.headline import TUNED


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


def test_a_variant_that_does_nothing_in_time_in_some_cell_has_a_mean():
    nothing = {"tok/s in time": [0.0, 1.0], "least satisfied": [-1.0, 0.0], "tail (s)": [2.0, 1.0]}
    assert summary_of(nothing)["work"] == pytest.approx(0.1)
    assert summary_of(nothing)["work_worst"] == 0.0


def test_the_best_settings_are_within_their_grids():
    assert set(TUNED) == set(tuning.GRIDS)
    for name, options in TUNED.items():
        assert options in tuning.GRIDS[name]
