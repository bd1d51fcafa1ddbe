"""The statements of the eight cells fail when the figures disagree."""

import pytest

from fairserve.benchmarks.reproduce.default.headline import OTHERS, OURS, claims
from fairserve.benchmarks.reproduce.report import ReportRow, ReportSpread

GOOD = {OURS: (100.0, 0.9, 1.0)} | dict.fromkeys(OTHERS, (90.0, 0.5, 4.0))
"""Tokens a second, least satisfied part and tail."""


def cell(**changes):
    """Return the rows of one cell; names have underscores for dashes."""
    changed = {name.replace("_", "-"): figures for name, figures in changes.items()}
    names = ("tok/s in time", "least satisfied", "tail (s)")
    return {
        f"chat: {name}": ReportRow(
            name, {column: ReportSpread((v,)) for column, v in zip(names, figures, strict=True)}
        )
        for name, figures in (GOOD | changed).items()
    }


def failed(**changes):
    return [check.claim for check in claims(cell(**changes), ["chat"]) if not check.holds]


def test_good_figures_pass():
    assert failed() == []


@pytest.mark.parametrize(
    "better", [(104.0, 0.9, 1.0), (100.0, 1.01, 1.0), (100.0, 0.9, 0.8), (99.5, 0.895, 0.5)]
)
def test_a_system_that_is_better_in_one_figure_and_as_good_in_the_others_is_found(better):
    assert failed(vtc=better)[0] == "chat: no system is better in throughput, satisfaction and tail"


@pytest.mark.parametrize("mixed", [(150.0, 0.7, 2.0), (100.0, 0.9, 1.0), (98.0, 1.0, 0.9)])
def test_better_in_one_figure_and_worse_in_another_is_not(mixed):
    assert not any("no system" in claim for claim in failed(vtc=mixed))


def test_throughput_and_tail_are_compared_only_among_systems_that_satisfy_alike():
    assert failed(vtc=(150.0, 0.75, 0.1)) == []
    assert failed(vtc=(150.0, 0.85, 2.0)) == [
        "chat: at least 0.97 of the throughput of any that satisfies alike"
    ]
    assert failed(vtc=(90.0, 0.85, 0.5)) == [
        "chat: at most 1.2 times the tail of any that satisfies alike"
    ]
