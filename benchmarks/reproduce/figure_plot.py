"""The panels of a figure as one PNG, three in a row unless the figure says how many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Sheet

from fairserve.benchmarks.reproduce.figure import Panel
from fairserve.benchmarks.reproduce.service_history import Floats, ServiceHistory
from fairserve.benchmarks.simulate.plots import COLORS, save
from fairserve.benchmarks.simulate.plots import sheet as empty_sheet

_IN_A_ROW = 3
GREY = "#b0b0b0"
_WHAT = {
    "service": "service received",
    "actual": "actual service",
    "response": "response time",
}


def draw_figure(
    path: Path,
    panels: Sequence[Panel],
    histories: Mapping[str, ServiceHistory],
    across: int | None = None,
) -> Path:
    """All panels; those of a kind have one scale, so that systems can be compared.

    With ``across`` they are a grid, which has one time axis, one legend, and a label a row.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    in_a_row = across or (2 if len(panels) == 4 else min(_IN_A_ROW, len(panels)))
    down = math.ceil(len(panels) / in_a_row)
    wide, high = (3.2, 2.7) if across else (4.4 if len(panels) > 1 else 5.6, 3.3)
    sheet = Sheet(figsize=(wide * in_a_row, high * down), dpi=120, layout="constrained")
    FigureCanvasAgg(sheet)
    by_kind: dict[str, list[Axes]] = {}
    named: dict[str, Artist] = {}
    for number, panel in enumerate(panels, start=1):
        axes = sheet.add_subplot(down, in_a_row, number)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
        if panel.kind == "throughput":
            _throughputs(axes, panel, histories)
        elif panel.kind == "difference":
            _differences(axes, panel, histories)
        else:
            _clients(axes, panel, histories[panel.rows[0]])
        if panel.kind != "throughput":
            axes.set_xlabel("time (s)", fontsize=8)
        if across:
            axes.set_xlim(0, 1.03 * max(history.times_s[-1] for history in histories.values()))
            if number % across != 1:
                axes.set_ylabel("")
            legend = axes.get_legend()
            assert legend is not None
            legend.remove()
            handles, labels = axes.get_legend_handles_labels()
            named.update(zip(labels, handles, strict=True))
        by_kind.setdefault(panel.kind, []).append(axes)
    for kind, same in by_kind.items():
        top = max(axes.get_ylim()[1] for axes in same)
        for axes in same:
            axes.set_ylim(0, (1.3 if kind == "difference" else 1.1) * top)  # room for the legend
    if named:
        sheet.legend(
            list(named.values()),
            list(named),
            fontsize=8,
            loc="outside lower center",
            ncols=len(named),
        )
    return save(sheet, path)


def _differences(axes: Axes, panel: Panel, histories: Mapping[str, ServiceHistory]) -> None:
    for name, color in zip(panel.rows, COLORS, strict=False):
        history = histories[name]
        axes.plot(
            history.times_s,
            history.difference / 1000,
            label=name,
            color=color,
            linewidth=1.2,
            # The last one may lie on another, which is seen through it.
            linestyle="--" if name == panel.rows[-1] and len(panel.rows) > 3 else "-",
        )
    if panel.bound is not None:
        axes.axhline(
            panel.bound / 1000, color="black", linestyle=":", linewidth=1.2, label="bound 2U"
        )
    axes.set_title("difference in accumulated service", fontsize=9)
    axes.set_ylabel("thousand weighted tokens", fontsize=8)
    axes.legend(fontsize=7)


def _clients(axes: Axes, panel: Panel, history: ServiceHistory) -> None:
    curves = {
        "service": history.service_per_s,
        "actual": history.actual_per_s,
        "response": history.response_s,
    }[panel.kind]
    service = panel.kind != "response"
    shown = panel.clients or tuple(curves)
    named = panel.named or shown
    # A dot where a window stands between two in which nothing arrived: it makes no line.
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
        axes.plot(history.times_s, total, label="total", color="black", linewidth=0.9)
    axes.set_title(f"{panel.rows[0]}: {_WHAT[panel.kind]}", fontsize=9)
    axes.set_ylabel("weighted tokens per second" if service else "seconds", fontsize=8)
    axes.legend(fontsize=7)


def _throughputs(axes: Axes, panel: Panel, histories: Mapping[str, ServiceHistory]) -> None:
    values = [histories[name].tokens_per_s for name in panel.rows]
    bars = axes.bar(panel.rows, values, color=COLORS[0])
    axes.bar_label(bars, fmt="{:,.0f}", fontsize=7)
    axes.set_title("throughput", fontsize=9)
    axes.set_ylabel("tokens per second", fontsize=8)
    axes.grid(visible=False, axis="x")


def draw_rates(path: Path, centres_s: Floats, rates: Mapping[str, Floats], total: Floats) -> Path:
    """Requests a minute: every client's, the last three named, and those of all together."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet, [left, right] = empty_sheet(2, width=4.4, height=3.3)
    *others, _, _, _ = rates
    for number, client in enumerate(others):
        label = None if number else f"{len(others)} others"
        left.plot(centres_s, rates[client], label=label, color=GREY, linewidth=0.8)
    for client, color in zip(list(rates)[-3:], COLORS, strict=False):
        left.plot(centres_s, rates[client], label=f"client {client}", color=color, linewidth=1.2)
    left.legend(fontsize=7)
    right.plot(centres_s, total, color="black", linewidth=1.2)
    for axes, title in ((left, "requests of each client"), (right, "requests of all clients")):
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("time (s)", fontsize=8)
        axes.set_ylabel("requests per minute", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.set_ylim(bottom=0)
    return save(sheet, path)
