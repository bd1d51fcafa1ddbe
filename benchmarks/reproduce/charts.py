"""Charts of a figure as one PNG: lines with the spread over seeds, or labelled points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fairserve.benchmarks.plots import band, caption, color, legend_below, level, save, sheet
from fairserve.benchmarks.reproduce.report import ReportRow, ReportSpread

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Values at positions on the x axis."""

    name: str
    points: Sequence[tuple[float, ReportSpread]]
    color: int
    """Number of the color; related lines share one."""
    labels: Sequence[str] = ()
    """Label of each point, above it; below it for a dashed line."""
    dashed: bool = False
    """Draw a dashed line, without the spread over seeds."""


@dataclass(frozen=True, slots=True)
class ReportChart:
    """One pair of axes."""

    title: str
    x: str
    y: str
    lines: Sequence[ChartLine]
    levels: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Horizontal lines by name, as (value, number of the color)."""
    right: Sequence[ChartLine] = ()
    """Lines of a second y axis."""
    right_y: str = ""
    right_range: tuple[float, float] | None = None
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = True
    """Start the y axis at 0."""


def line(name: str, rows: Sequence[tuple[float, ReportRow]], column: str, color: int) -> ChartLine:
    """Return the line of a column over these rows, each at its position."""
    return ChartLine(name, [(x, row.measured[column]) for x, row in rows], color)


def draw_charts(
    path: Path,
    charts: Sequence[ReportChart],
    *,
    width: float = 5.0,
    height: float = 4.1,
    across: int | None = None,
) -> str:
    """Draw charts, ``across`` of them in a row, with one legend below; return the file's name."""
    figure, panels = sheet(len(charts), width=width, height=height, across=across)
    drawn: list[Axes] = []
    for axes, chart in zip(panels, charts, strict=True):
        drawn.append(axes)
        _draw_lines(axes, chart.lines)
        for name, (value, number) in chart.levels.items():
            level(axes, value, color=color(number), style="-.", label=name)
        if chart.log_x:
            axes.set_xscale("log")
            places = [x for x, _ in chart.lines[0].points]
            axes.set_xticks(places, [f"{x:,.0f}" for x in places], rotation=30, ha="right")
            axes.minorticks_off()
        if chart.log_y:
            axes.set_yscale("log")
        elif chart.from_zero:
            axes.set_ylim(bottom=0)
        else:
            axes.margins(0.1)
        if chart.right:
            second = axes.twinx()
            _draw_lines(second, chart.right)
            caption(second, "", y=chart.right_y)
            if chart.right_range is not None:
                second.set_ylim(*chart.right_range)
            drawn.append(second)
        caption(axes, chart.title, chart.x, chart.y)
    legend_below(figure, drawn, 3 * (across or len(charts)))
    return save(figure, path).name


def _draw_lines(axes: Axes, lines: Sequence[ChartLine]) -> None:
    for each in lines:
        xs = [x for x, _ in each.points]
        values = [seen.value for _, seen in each.points]
        shade = color(each.color)
        if not each.labels and not each.dashed:
            least = [seen.least for _, seen in each.points]
            greatest = [seen.greatest for _, seen in each.points]
            band(axes, xs, least, greatest, shade)
        style = "--" if each.dashed else "-"
        axes.plot(
            xs, values, style, label=each.name, color=shade, marker="o", markersize=4, linewidth=1.3
        )
        for x, value, text in zip(xs, values, each.labels, strict=False):
            place = (-16, -11) if each.dashed else (5, 4)
            axes.annotate(
                text, (x, value), place, textcoords="offset points", fontsize=7, color=shade
            )
