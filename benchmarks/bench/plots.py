"""Curves of growth as PNG files: median and spread over the rounds, a logarithmic x axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fairserve.benchmarks.bench.growth import Measured

_INK = "#1f5c99"


def draw(curves: Sequence[Measured], folder: Path) -> list[Path]:
    """One file for each curve, in a folder that is made if it is missing; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_draw(curve, folder / f"{curve.curve.name}.png") for curve in curves]


def _draw(measured: Measured, path: Path) -> Path:
    curve = measured.curve
    sizes = [size for size, _, _, _ in measured.points]
    values = [value for _, value, _, _ in measured.points]
    figure = Figure(figsize=(5.6, 3.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.fill_between(
        sizes,
        [least for _, _, least, _ in measured.points],
        [greatest for _, _, _, greatest in measured.points],
        color=_INK,
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(sizes, values, color=_INK, marker="o", markersize=4)
    axes.set_xscale("symlog" if min(sizes) == 0 else "log", **_threshold(sizes))
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_title(curve.title, fontsize=10)
    axes.set_xlabel(curve.x)
    axes.set_ylabel(curve.y)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Software": None})
    return path


def _threshold(sizes: Sequence[int]) -> dict[str, float]:
    """Where a logarithmic axis with a zero begins to be one."""
    return {"linthresh": sizes[1]} if min(sizes) == 0 else {}
