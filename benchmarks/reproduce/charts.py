"""Charts of a figure as one PNG: lines with the spread of their seeds, or labelled points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from fairserve.benchmarks.reproduce.report import Row, Spread
from fairserve.benchmarks.simulate.plots import COLORS, save, sheet


@dataclass(frozen=True, slots=True)
class Line:
    """Values at places on the x axis."""

    name: str
    points: Sequence[tuple[float, Spread]]
    color: int
    """Number of the color; lines that belong together share one."""
    labels: Sequence[str] = ()
    """A text at each point, above it, or below it at a dashed line."""
    dashed: bool = False
    """Without the spread of its seeds."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One pair of axes."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    levels: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Horizontal lines by name: the value and the number of the color."""
    right: Sequence[Line] = ()
    """Lines of a second y axis."""
    right_y: str = ""
    right_range: tuple[float, float] | None = None
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = True
    """The y axis begins at 0."""


def line(name: str, rows: Sequence[tuple[float, Row]], column: str, color: int) -> Line:
    """A column of these rows, each at its place."""
    return Line(name, [(x, row.measured[column]) for x, row in rows], color)


def draw_charts(
    path: Path,
    charts: Sequence[Chart],
    *,
    width: float = 5.0,
    height: float = 4.1,
    across: int | None = None,
) -> str:
    """Beside each other or ``across`` in a row, one legend below; returns the name of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = sheet(len(charts), width=width, height=height, across=across)
    names: dict[str, Artist] = {}
    for axes, chart in zip(panels, charts, strict=True):
        both = [axes]
        _draw_lines(axes, chart.lines)
        for name, (value, color) in chart.levels.items():
            axes.axhline(value, label=name, color=_color(color), linestyle="-.", linewidth=1.2)
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
            second.set_ylabel(chart.right_y)
            if chart.right_range is not None:
                second.set_ylim(*chart.right_range)
            both.append(second)
        axes.set_title(chart.title, fontsize=10)
        axes.set_xlabel(chart.x)
        axes.set_ylabel(chart.y)
        for each in both:
            each.tick_params(labelsize=8)
            handles, labels = each.get_legend_handles_labels()
            for handle, label in zip(handles, labels, strict=True):
                names.setdefault(label, handle)
    columns = min(len(names), 3 * (across or len(charts)))
    figure.legend(
        list(names.values()), list(names), fontsize=8, loc="outside lower center", ncols=columns
    )
    return save(figure, path).name


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    for each in lines:
        xs = [x for x, _ in each.points]
        values = [seen.value for _, seen in each.points]
        color = _color(each.color)
        if not each.labels and not each.dashed:
            least = [seen.least for _, seen in each.points]
            greatest = [seen.greatest for _, seen in each.points]
            axes.fill_between(xs, least, greatest, color=color, alpha=0.15, linewidth=0)
        style = "--" if each.dashed else "-"
        axes.plot(
            xs, values, style, label=each.name, color=color, marker="o", markersize=4, linewidth=1.3
        )
        for x, value, text in zip(xs, values, each.labels, strict=False):
            place = (-16, -11) if each.dashed else (5, 4)
            axes.annotate(
                text, (x, value), place, textcoords="offset points", fontsize=7, color=color
            )


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]
