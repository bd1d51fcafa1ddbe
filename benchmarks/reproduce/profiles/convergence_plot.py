"""Plot of ``profiles``: shares over time, learning off and on, and learned profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairserve.benchmarks.plots import (
    BLACK,
    COLORS,
    caption,
    legend_below,
    level,
    log_places,
    save,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FACTORS = (0.1, 0.25, 0.5, 1, 2, 4, 10)


def draw_convergence(
    path: Path, settings: Mapping[str, Mapping[str, float]], runs: Mapping[str, Any]
) -> str:
    """Draw a column per setting: shares by declared and learned profiles, learned factors."""
    across = len(settings)
    figure, panels = sheet(3 * across, width=5.6, height=2.7, across=across)
    for place, (name, factors) in enumerate(settings.items()):
        wrong = ", ".join(f"{app} {factor:g}x" for app, factor in factors.items())
        declared, learned = runs[f"{name} declared"], runs[f"{name} learned"]
        _shares(panels[place], declared, f"Declared {wrong}\n\nService: the declared profiles hold")
        _shares(panels[place + across], learned, "Service: profiles are learned")
        _sizes(panels[place + 2 * across], learned)
    for axes in panels[: 2 * across]:
        axes.set_ylim(0, 3.1)
    legend_below(figure, panels[:1])
    return save(figure, path).name


def _shares(axes: Axes, summary: Mapping[str, Any], title: str) -> None:
    served: Mapping[str, list[float]] = summary["typical_per_s"]
    total = [sum(values) for values in zip(*served.values(), strict=True)]
    end_s = summary["duration_s"]
    width_s = end_s / len(total)
    times_s = [(number + 0.5) * width_s for number in range(len(total))]
    for (app, values), color in zip(served.items(), COLORS, strict=False):
        shares = [len(served) * v / max(all_, 1e-9) for v, all_ in zip(values, total, strict=True)]
        axes.plot(times_s, shares, color=color, label=app, linewidth=1.6)
    level(axes, 1.0, label="entitled")
    axes.set_xlim(0, end_s)
    caption(axes, title, y="times its share")


def _sizes(axes: Axes, summary: Mapping[str, Any]) -> None:
    end_s = summary["duration_s"]
    for (_, held), color in zip(summary["profiles"].items(), COLORS, strict=False):
        times_s = [each["since_s"] for each in held] + [end_s]
        factors = [each["factor"] for each in held]
        axes.step(times_s, [*factors, factors[-1]], where="post", color=color, linewidth=1.6)
    axes.axhspan(1 / 1.25, 1.25, color=BLACK, alpha=0.08, linewidth=0)
    level(axes, 1.0)
    axes.set_xlim(0, end_s)
    axes.set_yscale("log")
    axes.set_ylim(0.08, 13)
    log_places(axes.yaxis, _FACTORS)
    title = "Typical call by the profile in force (grey: within 25 %)"
    caption(axes, title, "time (s)", "times the true")
