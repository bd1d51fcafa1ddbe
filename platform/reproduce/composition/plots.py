"""Plots of the composition: systems over all cells, and what each of its parameters does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from fairserve.platform.reproduce.composition.workloads import ENTITLED, OURS, TAIL, THROUGHPUT
from fairserve.platform.reproduce.report import Row
from fairserve.platform.simulate.plots import COLORS, save, sheet

_PANELS = (
    (THROUGHPUT.name, "tokens/s, of the best system of the cell", 0.75),
    (TAIL.name, "p99 TTFT of the well-behaved, times the best", 2.5),
    (ENTITLED.name, "Jain's index of entitled service", 0.88),
)


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
    """A panel a parameter, a line a column (with its label), a mark at the default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = sheet(len(sweeps), width=3.2, height=3.4)
    for axes, (parameter, rows) in zip(panels, sweeps.items(), strict=True):
        labels = [label for label, _ in rows]
        for (column, label), color in zip(lines.items(), COLORS, strict=False):
            seen = [row.measured.get(column) for _, row in rows]
            values = [float("nan") if each is None else each.value for each in seen]
            axes.plot(range(len(rows)), values, "o-", color=color, markersize=4, label=label)
            axes.fill_between(
                range(len(rows)),
                [float("nan") if each is None else each.least for each in seen],
                [float("nan") if each is None else each.greatest for each in seen],
                color=color,
                alpha=0.15,
            )
        axes.axvline(labels.index(defaults[parameter]), color="black", linestyle=":", linewidth=1)
        axes.set_xticks(range(len(rows)), labels, fontsize=8)
        axes.set_title(f"{parameter} (default {defaults[parameter]})", fontsize=8)
        axes.tick_params(axis="y", labelsize=8)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5]))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=7)
    return save(figure, path)
