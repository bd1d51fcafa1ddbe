"""Style, axes and files of all plots. Only this module imports matplotlib, when it draws.

Without matplotlib the module can be imported, and :func:`plot_folder` rejects the plot option.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLORS = (
    "#1f5c99", "#c2492d", "#3f8f4f", "#8a5aa8", "#b8860b",
    "#2aa0a4", "#d0699a", "#6b6b6b", "#7a9a1f", "#4c4cc0",
)  # fmt: skip
GREY = "#b0b0b0"
"""Color of background lines."""
BLACK = "black"


def color(number: int) -> str:
    """Return a color by its number; colors repeat after the last one."""
    return COLORS[number % len(COLORS)]


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


def sheet(
    panels: int,
    *,
    width: float = 5.6,
    height: float = 3.6,
    across: int | None = None,
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with ``panels`` pairs of axes of ``width`` by ``height`` inches.

    They form one row, or rows of ``across``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    in_a_row = across or panels
    rows = -(-panels // in_a_row)
    figure = Figure(figsize=(width * in_a_row, height * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Axes] = []
    for number in range(1, panels + 1):
        shared = axes[0] if share_y and axes else None
        axes.append(figure.add_subplot(rows, in_a_row, number, sharey=shared))
        axes[-1].grid(alpha=0.3)
        axes[-1].set_axisbelow(True)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG file, creating its folder if missing; equal figures give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path


def caption(axes: Axes, title: str, x: str = "", y: str = "", *, size: float = 9) -> None:
    """Set the title and the labels of a panel, and small labels at its ticks."""
    axes.set_title(title, fontsize=size)
    axes.set_xlabel(x, fontsize=size)
    axes.set_ylabel(y, fontsize=size)
    axes.tick_params(labelsize=8)


def level(
    axes: Axes, value: float, *, color: str = BLACK, style: str = "--", label: str | None = None
) -> None:
    """Draw a horizontal line over the whole width, for a bound or a reference."""
    axes.axhline(value, color=color, linestyle=style, linewidth=1.2, label=label)


def band(
    axes: Axes,
    xs: Sequence[float],
    least: Sequence[float],
    greatest: Sequence[float],
    color: str,
) -> None:
    """Fill the area between the smallest and largest values of a line."""
    axes.fill_between(xs, least, greatest, color=color, alpha=0.15, linewidth=0)


def log_places(axis: Axis, places: Sequence[float]) -> None:
    """Put ticks at these positions of a logarithmic axis only."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    axis.set_major_locator(FixedLocator(list(places)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def unit_prefixes(axis: Axis) -> None:
    """Label at most five ticks with unit prefixes: 20k."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_major_locator(MaxNLocator(5))


def legend_below(figure: Figure, panels: Sequence[Axes], columns: int | None = None) -> None:
    """Place one legend for all panels below them; repeated labels are listed once."""
    named: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            named.setdefault(label, handle)
    figure.legend(
        list(named.values()),
        list(named),
        fontsize=8,
        loc="outside lower center",
        ncols=min(columns or len(named), len(named)),
    )
