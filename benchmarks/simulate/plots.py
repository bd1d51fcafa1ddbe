"""Plots of a simulation as PNG files, in the forms used by the papers.

For each system: the service of each client over time, and its response time. For all systems
together: bars, and the front of throughput against fairness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairserve.benchmarks.plots import PlotLine, PlotPanel, color, draw_panels
from fairserve.benchmarks.simulate.job import SimulationOutcome
from fairserve.benchmarks.simulate.table import Summary

MOST_CLIENTS = 10
"""Maximum curves in one plot: those of the clients with the most service."""
_THROUGHPUT, _JAIN = "throughput (tokens/s)", "Jain's index"


def draw(outcomes: Sequence[SimulationOutcome], folder: Path) -> list[Path]:
    """Draw all plots of these systems; return their paths."""
    plots: dict[str, list[PlotPanel]] = {}
    for outcome in outcomes:
        if outcome.curves is None:
            continue
        name, curves = outcome.name.replace("/", "-"), outcome.curves
        for kind, title, y, values in (
            ("service", "service received", "service per second", curves.service_per_s),
            ("response", "time to first token", "seconds", curves.response_s),
        ):
            lines = [
                PlotLine(client, curves.centres_s, _gaps(values[client]), {"color": color(number)})
                for number, client in enumerate(list(values)[:MOST_CLIENTS])
            ]
            plots[f"{kind}-{name}"] = [PlotPanel(f"{outcome.name}: {title}", "time (s)", y, lines)]
    figures = {outcome.name: _figures(outcome.summary) for outcome in outcomes}
    plots["systems"] = [
        PlotPanel(title, bars={name: each[title] for name, each in figures.items()})
        for title in next(iter(figures.values()))
    ]
    if len(outcomes) > 1:
        points = [
            PlotLine(name, [each[_THROUGHPUT]], [each[_JAIN]], {"marker": "o", "color": color(n)})
            for n, (name, each) in enumerate(figures.items())
        ]
        plots["front"] = [PlotPanel("", _THROUGHPUT, _JAIN, points, from_zero=False)]
    return [folder / draw_panels(folder / f"{name}.png", panels) for name, panels in plots.items()]


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _figures(summary: Summary) -> Mapping[str, float]:
    """Return the figures of the bars: throughput, tail, service difference and Jain's index."""
    return {
        _THROUGHPUT: summary["throughput_tokens_per_s"]["total"],
        "TTFT p99 (s)": summary["ttft_s"]["p99"] or 0.0,
        "mean service difference (per s)": summary["service_difference"]["avg"],
        _JAIN: summary["jain_index"],
    }
