"""Plots as PNG files: panels of lines, points, steps or bars. Only this module imports matplotlib.

It does so when it draws: without matplotlib :func:`plot_folder` rejects the plot option.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = (
    "#1f5c99", "#c2492d", "#3f8f4f", "#8a5aa8", "#b8860b",
    "#2aa0a4", "#d0699a", "#6b6b6b", "#7a9a1f", "#4c4cc0",
)  # fmt: skip
GREY = "#b0b0b0"
"""Color of background lines."""
BLACK = "black"


def color(number: int) -> str:
    """Return a color by its number; colors repeat after the last one."""
    return _COLORS[number % len(_COLORS)]


@dataclass(frozen=True, slots=True)
class PlotLine:
    """Values at positions on the x axis; ``style`` are further properties of a line of matplotlib."""

    name: str | None
    """Name in the legend; None: not in it."""
    xs: Sequence[float] | npt.NDArray[np.float64]
    ys: Sequence[float] | npt.NDArray[np.float64]
    style: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[str] = ()
    """Label of each point, beside it."""
    spread: Sequence[tuple[float, float]] = ()
    """Smallest and largest value at each position."""


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One pair of axes."""

    title: str = ""
    x: str = ""
    y: str = ""
    lines: Sequence[PlotLine] = ()
    bars: Mapping[str, float] = field(default_factory=dict)
    """Horizontal bars by name."""
    level: float | None = None
    """Position of a dashed horizontal line, for a bound or a reference."""
    x_ticks: Sequence[float] = ()
    """Places of a logarithmic x axis."""
    y_ticks: Sequence[float] = ()
    """Places of a logarithmic y axis."""
    log_y: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    from_zero: bool = True
    """Start the y axis at 0, if it has no range."""


def plot_folder(text: str) -> Path:
    """Return the folder that an option names; it may not exist yet. Raises ValueError."""
    path = Path(text)
    there = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    if not there.is_dir():
        raise ValueError(f"{there} is not a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"the folder {there} cannot be written to")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib: pip install 'fairserve[bench]'")
    return path


def draw_panels(
    path: Path,
    panels: Sequence[PlotPanel],
    *,
    width: float = 4.4,
    height: float = 3.3,
    across: int | None = None,
    legend: bool = True,
) -> str:
    """Draw panels of ``width`` by ``height`` inches, up to ``across`` in a row; return the file's name.

    ``legend`` puts one legend for all panels below them, otherwise each has its own. The folder is
    made if missing; equal panels give equal bytes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    in_a_row = min(across or len(panels), len(panels))
    rows = -(-len(panels) // in_a_row)
    figure = Figure(figsize=(width * in_a_row, height * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    drawn: list[Axes] = []
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, in_a_row, number)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        _draw(axes, panel)
        drawn.append(axes)
        if not legend:
            axes.legend(fontsize=7)
    if legend:
        _legend_below(figure, drawn, 3 * in_a_row)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path.name


def _draw(axes: Axes, panel: PlotPanel) -> None:
    for line in panel.lines:
        style = {"linewidth": 1.3, "markersize": 4, **line.style}
        [drawn] = axes.plot(line.xs, line.ys, label=line.name, **style)
        if line.spread:
            least, greatest = zip(*line.spread, strict=True)
            axes.fill_between(line.xs, least, greatest, color=drawn.get_color(), alpha=0.15, lw=0)
        for x, y, text in zip(line.xs, line.ys, line.labels, strict=False):
            axes.annotate(
                text,
                (x, y),
                (5, 4),
                textcoords="offset points",
                fontsize=7,
                color=drawn.get_color(),
            )
    if panel.bars:
        colors = [color(number) for number in range(len(panel.bars))]
        axes.barh(list(panel.bars), list(panel.bars.values()), color=colors)
        axes.invert_yaxis()
    if panel.level is not None:
        axes.axhline(panel.level, color=BLACK, linestyle="--", linewidth=1.2)
    if panel.x_ticks:
        axes.set_xscale("log")
        axes.set_xticks(panel.x_ticks, [f"{x:,g}" for x in panel.x_ticks])
        axes.minorticks_off()
    if panel.y_ticks or panel.log_y:
        axes.set_yscale("log")
    if panel.y_ticks:
        axes.set_yticks(panel.y_ticks, [f"{y:g}" for y in panel.y_ticks])
        axes.minorticks_off()
    if panel.x_range is not None:
        axes.set_xlim(*panel.x_range)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    elif panel.from_zero and panel.lines and axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.x, fontsize=9)
    axes.set_ylabel(panel.y, fontsize=9)
    axes.tick_params(labelsize=8)


def _legend_below(figure: Figure, panels: Sequence[Axes], columns: int) -> None:
    """Place one legend for all panels below them; repeated labels are listed once."""
    named: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            named.setdefault(label, handle)
    if named:
        figure.legend(
            list(named.values()),
            list(named),
            fontsize=8,
            loc="outside lower center",
            ncols=min(columns, len(named)),
        )
