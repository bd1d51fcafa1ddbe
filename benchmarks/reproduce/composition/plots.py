"""Plots of the composition: systems over all cells, and what each of its parameters does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from fairserve.benchmarks.reproduce.composition.workloads import OURS, SATISFIED, TAIL, THROUGHPUT
from fairserve.benchmarks.reproduce.report import Row, Spread
from fairserve.benchmarks.simulate.plots import COLORS, save, sheet

_PANELS = (
    (THROUGHPUT.name, "tokens/s, of the best system of the cell", 0.83),
    (TAIL.name, "p99 TTFT of the well-behaved, times the best", 1.6),
    (SATISFIED.name, "least satisfied client, of the best system of the cell", 0.9),
)

_IN_A_ROW = 4
_RATIOS = (0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5)
_NOTHING = Spread(math.nan, math.nan, math.nan)
"""Of a row without the figure."""


def draw_cells(path: Path, ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> Path:
    """A panel a figure, a column of dots a system, a dot a cell; dashed: what the worst may be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = sheet(len(_PANELS), width=4.4, height=3.6)
    names = list(ratios)
    for axes, (column, title, bound) in zip(panels, _PANELS, strict=True):
        for place, name in enumerate(names):
            values = ratios[name][column]
            shifts = np.linspace(-0.25, 0.25, len(values))
            color = COLORS[1] if name == OURS else COLORS[0]
            axes.plot(place + shifts, values, ".", color=color, markersize=7)
        axes.axhline(bound, color="black", linestyle="--", linewidth=1)
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
        axes.tick_params(axis="y", labelsize=8)
        axes.set_title(title, fontsize=9)
        if column == TAIL.name:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(ScalarFormatter())
        else:
            axes.set_ylim(0, 1.05)
    return save(figure, path)


def draw_sweeps(
    path: Path,
    sweeps: Mapping[str, Sequence[tuple[str, Row]]],
    lines: Mapping[str, str],
    defaults: Mapping[str, str],
    *,
    log: bool,
) -> Path:
    """A panel a parameter, a line a column (with its label), dotted: the default. One scale for all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    across = min(_IN_A_ROW, len(sweeps))
    down = math.ceil(len(sweeps) / across)
    figure = Figure(
        figsize=(max(3.4 * across, 5.0), 2.8 * down + 0.4), dpi=120, layout="constrained"
    )
    FigureCanvasAgg(figure)
    first: Axes | None = None
    for number, (parameter, rows) in enumerate(sweeps.items(), start=1):
        axes = figure.add_subplot(down, across, number, sharey=first)
        first = first or axes
        axes.grid(alpha=0.3)
        labels = [label for label, _ in rows]
        places = range(len(rows))
        for (column, label), color in zip(lines.items(), COLORS, strict=False):
            seen = [row.measured.get(column, _NOTHING) for _, row in rows]
            values = [each.value for each in seen]
            least, greatest = [each.least for each in seen], [each.greatest for each in seen]
            axes.plot(places, values, "o-", color=color, markersize=4, label=label)
            axes.fill_between(places, least, greatest, color=color, alpha=0.15)
        axes.axvline(labels.index(defaults[parameter]), color="black", linestyle=":", linewidth=1)
        axes.set_xticks(places, labels, fontsize=8)
        axes.set_title(f"{parameter} (default {defaults[parameter]})", fontsize=9)
        axes.tick_params(axis="y", labelsize=8)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(FixedLocator(_RATIOS))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(bottom=0)
    assert first is not None
    handles, names = first.get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, loc="outside lower center", ncols=len(names))
    return save(figure, path)
