"""Statements about a series of values: whether they rise or fall, and which points are dominated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from fairserve.benchmarks.reproduce.report import Check, ReportRow

IN_ORDER = 0.7
"""Share of pairs in order that makes a series rising; neighbours may swap between seeds."""


def rising_pairs(values: Sequence[float]) -> float:
    """Return the share of pairs whose later value is greater; 1 for fewer than two values."""
    pairs = [later > earlier for earlier, later in combinations(values, 2)]
    return sum(pairs) / len(pairs) if pairs else 1.0


def rises(claim: str, rows: Sequence[ReportRow], column: str, *, falls: bool = False) -> Check:
    """Check that the last median exceeds the first and most pairs are in order, or the reverse."""
    values = [row.measured[column].value for row in rows]
    signed = [-value for value in values] if falls else values
    share = rising_pairs(signed)
    digits = 3 if max(values) <= 1.0 else 0
    seen = f"{values[0]:,.{digits}f} to {values[-1]:,.{digits}f}, {share:.0%} of pairs in order"
    return Check(claim, signed[-1] > signed[0] and share >= IN_ORDER, seen)


def dominates(
    row: ReportRow, other: ReportRow, columns: Sequence[str], margin: float = 0.005
) -> bool:
    """Return whether the first is better in every column by more than spread and margin."""
    return all(
        row.measured[column].least > (1 + margin) * other.measured[column].greatest
        for column in columns
    )


def not_dominated(
    claim: str, rows: Mapping[str, ReportRow], by: Sequence[ReportRow], columns: Sequence[str]
) -> Check:
    """Check that none of the rows is worse than one of the others in all columns."""
    worse = [
        f"{name} by {other.name}"
        for name, row in rows.items()
        for other in by
        if dominates(other, row, columns)
    ]
    return Check(claim, not worse, "; ".join(worse) or "none is")
