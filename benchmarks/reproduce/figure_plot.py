"""Panels of a figure as one PNG, three per row, or two of four."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairserve.benchmarks.plots import (
    BLACK,
    COLORS,
    GREY,
    caption,
    level,
    save,
    sheet,
)
from fairserve.benchmarks.reproduce.figure import Panel
from fairserve.benchmarks.reproduce.service_history import Floats, ServiceHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_IN_A_ROW = 3
_WHAT = {
    "service": "service received",
    "response": "response time",
}


def draw_figure(
    path: Path,
    panels: Sequence[Panel],
    histories: Mapping[str, ServiceHistory],
) -> Path:
    """Draw all panels; those of a kind have one scale, so that systems can be compared."""
    in_a_row = 2 if len(panels) == 4 else min(_IN_A_ROW, len(panels))
    wide = 4.4 if len(panels) > 1 else 5.6
    figure, places = sheet(len(panels), width=wide, height=3.3, across=in_a_row)
    by_kind: dict[str, list[Axes]] = {}
    for axes, panel in zip(places, panels, strict=True):
        if panel.kind == "throughput":
            _throughputs(axes, panel, histories)
        elif panel.kind == "difference":
            _differences(axes, panel, histories)
        else:
            _clients(axes, panel, histories[panel.rows[0]])
        if panel.kind != "throughput":
            axes.legend(fontsize=7)
        by_kind.setdefault(panel.kind, []).append(axes)
    for kind, same in by_kind.items():
        top = max(axes.get_ylim()[1] for axes in same)
        for axes in same:
            axes.set_ylim(0, (1.3 if kind == "difference" else 1.1) * top)  # room for the legend
    return save(figure, path)


def _differences(axes: Axes, panel: Panel, histories: Mapping[str, ServiceHistory]) -> None:
    for name, color in zip(panel.rows, COLORS, strict=False):
        history = histories[name]
        axes.plot(
            history.times_s,
            history.difference / 1000,
            label=name,
            color=color,
            linewidth=1.2,
            # The last line may overlap another one, which stays visible.
            linestyle="--" if name == panel.rows[-1] and len(panel.rows) > 3 else "-",
        )
    if panel.bound is not None:
        level(axes, panel.bound / 1000, style=":", label="bound 2U")
    caption(axes, "difference in accumulated service", "time (s)", "thousand weighted tokens")


def _clients(axes: Axes, panel: Panel, history: ServiceHistory) -> None:
    curves = {
        "service": history.service_per_s,
        "response": history.response_s,
    }[panel.kind]
    service = panel.kind != "response"
    shown = panel.clients or tuple(curves)
    named = panel.named or shown
    # Dots show a single window between two without arrivals, which gives no line.
    style: dict[str, Any] = {} if service else {"marker": ".", "markersize": 2}
    others = [client for client in shown if client not in named]
    for number, client in enumerate(others):
        label = None if number else f"{len(others)} others"
        values = curves[client]
        axes.plot(history.times_s, values, label=label, color=GREY, linewidth=0.8, **style)
    for client, color in zip(named, COLORS, strict=False):
        label = client if client.startswith("client") else f"client {client}"
        values = curves[client]
        axes.plot(history.times_s, values, label=label, color=color, linewidth=1.2, **style)
    if service:
        total = sum(curves.values(), np.zeros_like(history.times_s))
        axes.plot(history.times_s, total, label="total", color=BLACK, linewidth=0.9)
    y = "weighted tokens per second" if service else "seconds"
    caption(axes, f"{panel.rows[0]}: {_WHAT[panel.kind]}", "time (s)", y)


def _throughputs(axes: Axes, panel: Panel, histories: Mapping[str, ServiceHistory]) -> None:
    values = [histories[name].tokens_per_s for name in panel.rows]
    bars = axes.bar(panel.rows, values, color=COLORS[0])
    axes.bar_label(bars, fmt="{:,.0f}", fontsize=7)
    caption(axes, "throughput", y="tokens per second")
    axes.grid(visible=False, axis="x")


def draw_rates(path: Path, centres_s: Floats, rates: Mapping[str, Floats], total: Floats) -> Path:
    """Draw requests per minute: of each client, the last three named, and in total."""
    figure, [left, right] = sheet(2, width=4.4, height=3.3)
    *others, _, _, _ = rates
    for number, client in enumerate(others):
        label = None if number else f"{len(others)} others"
        left.plot(centres_s, rates[client], label=label, color=GREY, linewidth=0.8)
    for client, color in zip(list(rates)[-3:], COLORS, strict=False):
        left.plot(centres_s, rates[client], label=f"client {client}", color=color, linewidth=1.2)
    left.legend(fontsize=7)
    right.plot(centres_s, total, color=BLACK, linewidth=1.2)
    for axes, title in ((left, "requests of each client"), (right, "requests of all clients")):
        caption(axes, title, "time (s)", "requests per minute")
        axes.set_ylim(bottom=0)
    return save(figure, path)
