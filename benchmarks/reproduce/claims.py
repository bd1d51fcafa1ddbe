"""Claims about the rows of a report. All except one must hold for every seed.

A :class:`Statement` is a claim as data: the kind of comparison, its row and column, and its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fairserve.benchmarks.reproduce.report import Check, ReportRow, within


def at_most(claim: str, row: ReportRow, column: str, bound: float, digits: int = 0) -> Check:
    """Check that the maximum over the seeds is at most the bound."""
    seen = row.measured[column].greatest
    text = f"{seen:,.{digits}f}, allowed at most {bound:,.{digits}f}"
    return Check(f"{row.name}: {claim}", seen <= bound, text)


def at_least(claim: str, row: ReportRow, column: str, bound: float, digits: int = 0) -> Check:
    """Check that the minimum over the seeds is at least the bound."""
    seen = row.measured[column].least
    text = f"{seen:,.{digits}f}, at least {bound:,.{digits}f}"
    return Check(f"{row.name}: {claim}", seen >= bound, text)


def between(
    claim: str, row: ReportRow, column: str, low: float, high: float, digits: int = 2
) -> Check:
    """Check that all seeds are in a range."""
    seen = row.measured[column]
    text = (
        f"{seen.least:,.{digits}f} to {seen.greatest:,.{digits}f}, "
        f"allowed {low:,.{digits}f} to {high:,.{digits}f}"
    )
    return Check(f"{row.name}: {claim}", low <= seen.least and seen.greatest <= high, text)


def less(
    claim: str, low: ReportRow, high: ReportRow, column: str, share: float = 1.0, digits: int = 0
) -> Check:
    """Check that the first row's maximum is below the second row's minimum, or a share of it."""
    seen, other = low.measured[column].greatest, high.measured[column].least
    of = "" if share == 1.0 else f"{share:g} of "
    text = f"{seen:,.{digits}f} against {of}{other:,.{digits}f} under {high.name}"
    return Check(f"{low.name}: {claim}", seen < share * other, text)


def less_by_median(
    claim: str, low: ReportRow, high: ReportRow, column: str, digits: int = 0
) -> Check:
    """Check that the first row's median is below the second row's, regardless of single seeds."""
    seen, other = low.measured[column].value, high.measured[column].value
    text = f"{seen:,.{digits}f} against {other:,.{digits}f} under {high.name}, medians"
    return Check(f"{low.name}: {claim}", seen < other, text)


def ratio_between(
    claim: str, row: ReportRow, other: ReportRow, column: str, low: float, high: float
) -> Check:
    """Check that the first row's median over the second row's is in a range."""
    seen = row.measured[column].value / other.measured[column].value
    return Check(claim, low <= seen <= high, f"{seen:.2f} of it")


KINDS: Mapping[str, Callable[..., Check]] = {
    "at most": at_most,
    "at least": at_least,
    "between": between,
    "less": less,
    "less by median": less_by_median,
    "ratio between": ratio_between,
    "within": within,
}
"""Comparisons by the name that a file of statements uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A claim about a column of a row, with bounds or in comparison with another row."""

    kind: str
    claim: str
    row: str
    column: str
    bounds: Sequence[float] = ()
    than: str = ""
    """Name of the row that it is compared with."""
    digits: int | None = None
    """Digits of the shown values; None: the kind's own."""
    times: str = ""
    """Name of a row by whose median of the column the bounds are multiplied."""
    times_greatest: str = ""
    """The same by its maximum over the seeds."""

    def check(self, rows: Mapping[str, ReportRow]) -> Check:
        """Return whether it holds in these rows."""
        factor = 1.0
        if self.times:
            factor = rows[self.times].measured[self.column].value
        if self.times_greatest:
            factor = rows[self.times_greatest].measured[self.column].greatest
        return KINDS[self.kind](
            self.claim,
            rows[self.row],
            *([rows[self.than]] if self.than else []),
            self.column,
            *(factor * bound for bound in self.bounds),
            **({} if self.digits is None else {"digits": self.digits}),
        )
