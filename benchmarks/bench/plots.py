"""Curves of growth: median and spread over the rounds, over a logarithmic x axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairserve.benchmarks.bench.growth import MeasuredGrowth
from fairserve.benchmarks.plots import COLORS, band, caption, save, sheet


def draw(curves: Sequence[MeasuredGrowth], folder: Path) -> list[Path]:
    """Draw one file for each curve; return their paths."""
    return [_draw(curve, folder / f"{curve.curve.name}.png") for curve in curves]


def _draw(measured: MeasuredGrowth, path: Path) -> Path:
    curve = measured.curve
    sizes, values, least, greatest = zip(*measured.points, strict=True)
    figure, [axes] = sheet(1)
    band(axes, sizes, least, greatest, COLORS[0])
    axes.plot(sizes, values, color=COLORS[0], marker="o", markersize=4)
    if min(sizes) == 0:
        axes.set_xscale("symlog", linthresh=sizes[1])
    else:
        axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    caption(axes, curve.title, curve.x, curve.y)
    return save(figure, path)
