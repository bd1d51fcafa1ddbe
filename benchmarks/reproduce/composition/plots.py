"""Plots of the composition: systems over all cells, and the effect of each parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fairserve.benchmarks.plots import (
    BLACK,
    COLORS,
    band,
    caption,
    legend_below,
    level,
    log_places,
    names_at,
    save,
    sheet,
)
from fairserve.benchmarks.reproduce.composition.workloads import OURS, SATISFIED, TAIL, THROUGHPUT
from fairserve.benchmarks.reproduce.report import Row, Spread

_PANELS = (
    (THROUGHPUT.name, "tokens/s, of the best system of the cell", 0.83),
    (TAIL.name, "p99 TTFT of the well-behaved, times the best", 1.6),
    (SATISFIED.name, "least satisfied client, of the best system of the cell", 0.9),
)

_IN_A_ROW = 4
_RATIOS = (0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5)
_NOTHING = Spread(math.nan, math.nan, math.nan)
"""Values of a row without the figure."""


def draw_cells(path: Path, ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> Path:
    """Draw a panel per figure, with a column of dots per system and the bound, dashed."""
    figure, panels = sheet(len(_PANELS), width=4.4, height=3.6)
    names = list(ratios)
    for axes, (column, title, bound) in zip(panels, _PANELS, strict=True):
        for place, name in enumerate(names):
            values = ratios[name][column]
            shifts = np.linspace(-0.25, 0.25, len(values))
            color = COLORS[1] if name == OURS else COLORS[0]
            axes.plot(place + shifts, values, ".", color=color, markersize=7)
        level(axes, bound)
        caption(axes, title)
        names_at(axes, names)
        if column == TAIL.name:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
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
    """Draw a panel per parameter, with a line per column, and the default, dotted."""
    across = min(_IN_A_ROW, len(sweeps))
    down = math.ceil(len(sweeps) / across)
    figure, panels = sheet(
        len(sweeps),
        width=max(3.4, 5.0 / across),
        height=2.8 + 0.4 / down,
        across=across,
        share_y=True,
    )
    for axes, (parameter, rows) in zip(panels, sweeps.items(), strict=True):
        labels = [label for label, _ in rows]
        places = range(len(rows))
        for (column, label), color in zip(lines.items(), COLORS, strict=False):
            seen = [row.measured.get(column, _NOTHING) for _, row in rows]
            values = [each.value for each in seen]
            least, greatest = [each.least for each in seen], [each.greatest for each in seen]
            axes.plot(places, values, "o-", color=color, markersize=4, label=label)
            band(axes, places, least, greatest, color)
        axes.axvline(labels.index(defaults[parameter]), color=BLACK, linestyle=":", linewidth=1)
        axes.set_xticks(places, labels)
        caption(axes, f"{parameter} (default {defaults[parameter]})")
        if log:
            axes.set_yscale("log")
            log_places(axes.yaxis, _RATIOS)
        else:
            axes.set_ylim(bottom=0)
    legend_below(figure, panels)
    return save(figure, path)
