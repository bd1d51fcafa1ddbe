"""A figure of the VTC paper as data: its columns, statements and panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fairserve.benchmarks.reproduce.claims import Statement
from fairserve.benchmarks.reproduce.report import Report, ReportColumn, ReportRow, rows_of
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.setting import Setting

Kind = Literal["difference", "service", "response", "throughput"]
Rows = Mapping[str, ReportRow]
Histories = Mapping[str, Sequence[ServiceHistory]]
"""Histories by row, one per seed."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: the differences or throughputs of several runs, or the clients of one."""

    kind: Kind
    rows: tuple[str, ...]
    bound: float | None = None
    """Maximum difference, drawn as a dashed line."""
    clients: tuple[str, ...] = ()
    """Shown clients; empty means all."""
    named: tuple[str, ...] = ()
    """Clients drawn in colors, the others in grey; empty means all in colors."""


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure, whose columns read a :class:`ServiceHistory`."""

    number: int
    title: str
    columns: tuple[ReportColumn, ...]
    statements: tuple[Statement, ...]
    panels: tuple[Panel, ...] = ()
    published: Mapping[str, Mapping[str, float]] | None = None
    """Published figures by row and column."""

    @property
    def name(self) -> str:
        """Return the name of the report and its plot."""
        return f"vtc-figure{self.number}"

    def report(self, setting: Setting, text: str, histories: Histories) -> Report:
        """Read, check and, if plots are requested, draw these runs, the first seed of each."""
        rows = rows_of(self.columns, histories, self.published)
        plots: tuple[str, ...] = ()
        if setting.plots is not None and self.panels:
            from fairserve.benchmarks.reproduce.figure_plot import draw_figure

            first = {name: seeds[0] for name, seeds in histories.items()}
            path = setting.plots / f"{self.name}.png"
            plots = (draw_figure(path, self.panels, first).name,)
        title = f"VTC, {self.title}"
        return Report(
            self.name,
            title,
            text,
            self.columns,
            list(rows.values()),
            [each.check(rows) for each in self.statements],
            plots,
        )
