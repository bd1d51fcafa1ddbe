"""Claims of the DLPM paper's Figure 1 fail when the figures disagree."""

import pytest

from fairserve.benchmarks.reproduce.dlpm import figure1
from fairserve.benchmarks.reproduce.dlpm.figure1 import OURS
from fairserve.benchmarks.reproduce.dlpm.trends import dominates, rises, rising_pairs
from fairserve.benchmarks.reproduce.report import ReportRow, ReportSpread

QUANTA = (1_000, 300_000)


def row(name, **figures):
    return ReportRow(name, {column: ReportSpread(v, v, v) for column, v in figures.items()})


def named(figures):
    return {
        name: ReportRow(name, {column: ReportSpread(v, v, v) for column, v in columns.items()})
        for name, columns in figures.items()
    }


def failed(checks):
    return [check.claim for check in checks if not check.holds]


def only_failed(checks, *words):
    wrong = failed(checks)
    assert len(wrong) == len(words), wrong
    for claim, part in zip(wrong, words, strict=True):
        assert part in claim


def test_trends_are_recognised():
    assert rising_pairs([1, 2, 3]) == 1.0
    assert rising_pairs([1, 3, 2]) == pytest.approx(2 / 3)
    assert rising_pairs([7]) == 1.0
    rows = [row(str(v), x=v) for v in (1.0, 2.0, 3.0)]
    assert rises("", rows, "x").holds
    assert not rises("", rows, "x", falls=True).holds
    assert rises("", rows[::-1], "x", falls=True).holds
    better, worse, other = row("b", x=2, y=2), row("w", x=1, y=1), row("o", x=3, y=1)
    assert dominates(better, worse, ("x", "y"))
    assert not dominates(other, better, ("x", "y"))
    assert not dominates(better, better, ("x", "y"))


def front(throughput, jain, actual=None):
    return {"tok/s": throughput, "Jain": jain, "Jain actual": jain if actual is None else actual}


FRONT = {
    "vtc": front(100, 1.0),
    "lpm": front(200, 0.4),
    OURS: front(190, 0.99),
    **{
        figure1.row_name(variant, quantum): front(throughput, jain)
        for variant in figure1.VARIANTS
        for quantum, throughput, jain in ((1_000, 120, 0.98), (300_000, 195, 0.5))
    },
}


@pytest.mark.parametrize(
    ("changed", "figures", "words"),
    [
        (None, (), []),
        ("dlpm, Q^u 1,000", (120, 0.9, 0.99), ["of VTC's, Jain (least"]),
        ("dlpm, Q^u 1,000", (120, 0.99, 0.9), ["of VTC's, Jain actual (least"]),
        ("dlpm, Q^u 300,000", (150, 0.5), ["90% of LPM"]),
        ("dlpm, Q^u 300,000", (110, 0.99), ["raises throughput", "lowers Jain's", "90% of LPM"]),
        ("lpm", (210, 0.6), ["dominated by VTC or LPM"] * 2),
        (OURS, (110, 0.9), [f"{OURS} is dominated"]),
    ],
)
def test_claims_of_figure_1(changed, figures, words):
    rows = named(FRONT if changed is None else {**FRONT, changed: front(*figures)})
    only_failed(figure1.claims(rows, QUANTA), *words)
