"""Reports of reproductions: published figures beside measured ones, and checked claims.

A figure is shown as the median over seeds, with the minimum and maximum. A check is a claim of the
paper, or of this project, as a sentence, with the observed values; most are statements of a file
(:mod:`fairserve.benchmarks.reproduce.statements`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from fairserve.benchmarks.text_table import aligned


@dataclass(frozen=True, slots=True)
class ReportSpread:
    """A figure over at least one seed."""

    seeds: tuple[float, ...]
    """Value under each seed, in their order."""

    @property
    def value(self) -> float:
        """Return the median."""
        return median(self.seeds)

    @property
    def least(self) -> float:
        """Return the minimum."""
        return min(self.seeds)

    @property
    def greatest(self) -> float:
        """Return the maximum."""
        return max(self.seeds)


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
    """Measured figures by column, of shown columns and of those that only checks read."""
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
    """Shown columns."""
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

    def shown(self, row: ReportRow) -> dict[str, ReportSpread]:
        """Return the figures of a row that the table shows."""
        names = (column.name for column in self.columns)
        return {name: row.measured[name] for name in names if name in row.measured}

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
                        for name, m in self.shown(row).items()
                    },
                }
                for row in self.rows
            ],
            "checks": [asdict(check) for check in self.checks],
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
    """Return a row per name: each column over its runs, one per seed, and the published values.

    A column that one of the runs lacks has no figure in the row.
    """
    rows = {}
    for name, of_seeds in runs.items():
        seen = {column.name: tuple(column.of(run) for run in of_seeds) for column in columns}
        measured = {
            column: ReportSpread(values)
            for column, values in seen.items()
            if not any(map(math.isnan, values))
        }
        rows[name] = ReportRow(name, measured, (published or {}).get(name, {}))
    return rows
