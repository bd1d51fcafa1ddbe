"""Reports of reproductions: published figures beside measured ones, and checked claims.

A measured figure is the median over seeds, with the minimum and maximum. A check is a claim of the
paper, or of this project, as a sentence, with the observed values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from fairserve.benchmarks.text_table import aligned


class ReportSpread(NamedTuple):
    """A figure over several seeds."""

    value: float
    """Median of the figure."""
    least: float
    greatest: float


def spread(values: Iterable[float]) -> ReportSpread:
    """Return the spread of at least one value."""
    ordered = sorted(values)
    return ReportSpread(median(ordered), ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A figure of a table."""

    name: str
    of: Callable[[Any], float]
    """Returns the value for one run, for example from the figures of
    :func:`fairserve.scheduling.metrics.summarise`; NaN if the run lacks it."""
    digits: int = 0


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of a table: a system, or a setting of one."""

    name: str
    measured: Mapping[str, ReportSpread]
    """Measured figures by column."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Published figures by column, as far as given in the paper."""


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and whether it holds here."""

    claim: str
    holds: bool
    seen: str
    contradicted_by: str = ""
    """Figures of the paper that rule out its claim, which then counts neither way; usually empty."""


@dataclass(frozen=True, slots=True)
class Report:
    """One table or figure of a paper."""

    name: str
    """Name on the command line."""
    title: str
    setting: str
    """Cost model, workload and seeds: the information needed to judge or repeat it."""
    columns: Sequence[ReportColumn]
    rows: Sequence[ReportRow]
    checks: Sequence[Check]
    plots: Sequence[str] = ()
    """Names of the plot files."""
    notes: Sequence[str] = ()
    """Additional sentences, such as those on where this project's default loses."""

    def text(self) -> str:
        """Return the report for the terminal: published value, measured value and spread per figure."""
        rows = [[row.name, *self._cells(row, "-")] for row in self.rows]
        table = aligned(["", *self._header()], rows)
        lines = [f"{self.name}: {self.title}", self.setting, "", table, ""]
        for check in self.checks:
            verdict = "holds    " if check.holds else "DOES NOT "
            if check.contradicted_by:
                verdict = f"not counted (the paper: {check.contradicted_by}):"
            lines.append(f"{verdict} {check.claim}: {check.seen}")
        return "\n".join([*lines, *self.notes])

    def markdown(self) -> str:
        """Return the report as a Markdown document."""
        header = self._header()
        lines = [f"## {self.name}: {self.title}", "", self.setting, ""]
        lines.append("| |" + "".join(f" {name} |" for name in header))
        lines.append("|---|" + "---:|" * len(header))
        lines += ["| " + " | ".join([row.name, *self._cells(row, "")]) + " |" for row in self.rows]
        lines.append("")
        for check in self.checks:
            verdict = "holds" if check.holds else "**does not hold**"
            if check.contradicted_by:
                verdict = f"contradicted by the paper ({check.contradicted_by})"
            lines.append(f"- {verdict}: {check.claim} ({check.seen})")
        lines += [f"- {note}" for note in self.notes]
        for plot in self.plots:
            lines += ["", f"![{self.title}]({plot})"]
        return "\n".join(lines) + "\n"

    def _header(self) -> list[str]:
        names = []
        for column in self.columns:
            names.append(column.name)
            if self._compared(column):
                names.append("published")
        return names

    def _cells(self, row: ReportRow, nothing: str) -> list[str]:
        cells = []
        for column in self.columns:
            cells.append(_shown(row.measured.get(column.name), column.digits))
            if self._compared(column):
                published = row.published.get(column.name)
                cells.append(nothing if published is None else f"{published:,.{column.digits}f}")
        return cells

    def _compared(self, column: ReportColumn) -> bool:
        """Return whether the paper gives a figure of this column for any row."""
        return any(column.name in row.published for row in self.rows)

    def to_plain(self) -> dict[str, Any]:
        """Return the report for ``--json``."""
        return {
            "name": self.name,
            "title": self.title,
            "setting": self.setting,
            "rows": [
                {
                    "name": row.name,
                    "published": dict(row.published),
                    "measured": {
                        name: {"value": m.value, "spread": [m.least, m.greatest]}
                        for name, m in row.measured.items()
                    },
                }
                for row in self.rows
            ],
            "checks": [
                {
                    "claim": check.claim,
                    "holds": check.holds,
                    "seen": check.seen,
                    "contradicted_by": check.contradicted_by,
                }
                for check in self.checks
            ],
            "notes": list(self.notes),
            "plots": list(self.plots),
        }


def _shown(figure: ReportSpread | None, digits: int) -> str:
    if figure is None:
        return "-"
    value = f"{figure.value:,.{digits}f}"
    if figure.least == figure.greatest:
        return value
    return f"{value} ({figure.least:,.{digits}f}-{figure.greatest:,.{digits}f})"


def ratio(value: float, base: float) -> float:
    """Return one figure over another; 1 if both are 0, infinite if only the other is."""
    if base == 0:
        return 1.0 if value == 0 else math.inf
    return value / base


def rows_of(
    columns: Sequence[ReportColumn],
    runs: Mapping[str, Sequence[Any]],
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, ReportRow]:
    """Return a row per name: each column over its runs, and the published values."""
    known = published or {}
    return {
        name: ReportRow(name, measure(columns, of_row), known.get(name, {}))
        for name, of_row in runs.items()
    }


def measure(columns: Sequence[ReportColumn], runs: Sequence[Any]) -> dict[str, ReportSpread]:
    """Return each column over the runs of one system under several seeds, if all have the figure."""
    seen = {column.name: [column.of(run) for run in runs] for column in columns}
    return {
        name: spread(values)
        for name, values in seen.items()
        if not any(math.isnan(value) for value in values)
    }


def within(claim: str, row: ReportRow, column: str, share: float) -> Check:
    """Check that the median is within a share of the published value."""
    published, seen = row.published[column], row.measured[column].value
    off = seen / published - 1
    return Check(claim, abs(off) <= share, f"{seen:,.1f}, published {published:,.1f}: {off:+.1%}")


def same_order(claim: str, rows: Sequence[ReportRow], column: str) -> Check:
    """Check that the rows are in the published order of this column.

    Two rows may be swapped if their measured spreads overlap and the paper has them within 5 %.
    """
    ordered = sorted(rows, key=lambda row: row.published[column])
    seen = {row.name: row.measured[column].value for row in rows}
    wrong = [
        f"{low.name} {seen[low.name]:,.1f} over {high.name} {seen[high.name]:,.1f}"
        for number, low in enumerate(ordered)
        for high in ordered[number + 1 :]
        if seen[low.name] > seen[high.name] and not _tie(low, high, column)
    ]
    return Check(claim, not wrong, "; ".join(wrong) or " < ".join(row.name for row in ordered))


def _tie(low: ReportRow, high: ReportRow, column: str) -> bool:
    near = low.published[column] >= 0.95 * high.published[column]
    return near and low.measured[column].least <= high.measured[column].greatest
