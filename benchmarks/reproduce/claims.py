"""Claims about the rows of a report. All except one must hold for every seed."""

from __future__ import annotations

from fairserve.benchmarks.reproduce.report import Check, ReportRow


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
