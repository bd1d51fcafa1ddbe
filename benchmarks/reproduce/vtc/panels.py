"""Panels of the VTC paper's figures: differences between clients, their service, response times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fairserve.benchmarks.plots import BLACK, GREY, PlotLine, PlotPanel, color
from fairserve.benchmarks.reproduce.study import Entry
from fairserve.benchmarks.reproduce.vtc.service_history import Floats, ServiceHistory


def panels_of(
    entry: Entry,
    histories: Mapping[str, Sequence[ServiceHistory]],
    groups: Mapping[str, Sequence[str]],
) -> Iterator[PlotPanel]:
    """Yield the panels of an entry, from the first seed of each run.

    One panel has the differences of several runs, others the clients of one. Those with the same
    y axis have one scale, so that systems can be compared. ``groups`` are clients, which a panel
    shows only (``clients``) or in colors (``named``).
    """
    first = {name: of_seeds[0] for name, of_seeds in histories.items()}
    panels = [panel for each in entry["panels"] for panel in _panels(each, first, groups)]
    tops: dict[str, float] = defaultdict(float)
    for panel in panels:
        values = [float(np.nanmax(line.ys)) for line in panel.lines if not np.isnan(line.ys).all()]
        tops[panel.y] = max(tops[panel.y], panel.level or 0.0, *values)
    for panel in panels:
        yield replace(panel, y_range=(0.0, 1.1 * tops[panel.y] or 1.0))


def _panels(
    entry: Entry, first: Mapping[str, ServiceHistory], groups: Mapping[str, Sequence[str]]
) -> Iterator[PlotPanel]:
    if rows := entry.get("difference"):
        lines = [
            PlotLine(name, first[name].times_s, first[name].difference / 1000, {"color": color(n)})
            for n, name in enumerate(rows)
        ]
        level = entry["bound"] / 1000 if "bound" in entry else None
        title = "difference in accumulated service"
        yield PlotPanel(title, "time (s)", "thousand weighted tokens", lines, level=level)
    clients, named = (groups.get(entry.get(key, ""), ()) for key in ("clients", "named"))
    for row in entry.get("service", ()):
        history = first[row]
        lines = _clients(history, history.service_per_s, clients, named)
        total = sum(history.service_per_s.values(), np.zeros_like(history.times_s))
        lines.append(PlotLine("total", history.times_s, total, {"color": BLACK, "linewidth": 0.9}))
        yield PlotPanel(f"{row}: service", "time (s)", "weighted tokens per second", lines)
    for row in entry.get("response", ()):
        lines = _clients(first[row], first[row].response_s, clients, named)
        # Dots show a single window between two without arrivals, which gives no line.
        dotted = [
            replace(each, style={**each.style, "marker": ".", "markersize": 2}) for each in lines
        ]
        yield PlotPanel(f"{row}: response time", "time (s)", "seconds", dotted)


def _clients(
    history: ServiceHistory,
    curves: Mapping[str, Floats],
    clients: Sequence[str],
    named: Sequence[str],
) -> list[PlotLine]:
    """Return a line for each client, those not named in grey."""
    shown = clients or tuple(curves)
    others = [client for client in shown if named and client not in named]
    lines = [
        PlotLine(
            None if number else f"{len(others)} others",
            history.times_s,
            curves[client],
            {"color": GREY, "linewidth": 0.8},
        )
        for number, client in enumerate(others)
    ]
    for number, client in enumerate(named or shown):
        name, style = f"client {client.removeprefix('client-')}", {"color": color(number)}
        lines.append(PlotLine(name, history.times_s, curves[client], style))
    return lines
