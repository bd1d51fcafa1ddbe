"""The report of agents beyond the memory of their caches, and its sessions."""

import pytest

from fairserve.benchmarks.reproduce.default.memory import (
    FIXED,
    OURS,
    WITHOUT,
    MemoryCell,
    statements,
)
from fairserve.benchmarks.reproduce.report import ReportRow, ReportSpread

CELLS = {each: MemoryCell(f"{each:g} x KV", each, 1, (), ()) for each in (0.5, 1.0, 4.0)}


def rows(ours, before, wait_s):
    def row(name, value):
        figures = {"tok/s": value, "p99 TTFT of begun runs (s)": wait_s}
        return ReportRow(name, {column: ReportSpread((each,)) for column, each in figures.items()})

    return {
        CELLS[working_set].label(name): row(name, value)
        for working_set in CELLS
        for name, value in (
            (OURS, ours[working_set]),
            (WITHOUT, before),
            (f"{FIXED}: 8", 220.0),
        )
    }


@pytest.mark.parametrize(
    ("ours", "wait_s", "wrong"),
    [
        ({0.5: 100.0, 1.0: 90.0, 4.0: 210.0}, 9.0, []),
        ({0.5: 98.0, 1.0: 90.0, 4.0: 210.0}, 9.0, ["0.5 x KV, D=1: 0.99 times"]),
        (
            {0.5: 100.0, 1.0: 90.0, 4.0: 190.0},
            9.0,
            ["4 x KV, D=1: 2 times", "4 x KV, D=1: 0.95 of"],
        ),
        ({0.5: 100.0, 1.0: 90.0, 4.0: 205.0}, 9.0, ["4 x KV, D=1: 0.95 of"]),
        ({0.5: 100.0, 1.0: 90.0, 4.0: 210.0}, 11.0, ["0.5 x", "1 x", "4 x"]),
    ],
)
def test_claims_fail_on_disagreeing_figures(ours, wait_s, wrong):
    seen = rows(ours, 100.0, wait_s)
    checks = [each.check(seen) for cell in CELLS.values() for each in statements(cell, list(seen))]
    failed = [check.claim for check in checks if not check.holds]
    assert len(failed) == len(wrong)
    assert all(claim.startswith(words) for claim, words in zip(failed, wrong, strict=True))
