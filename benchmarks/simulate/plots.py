"""Plots of a simulation as PNG files, in the forms used by the papers.

For each system: the service of each client over time, and its response time. For all systems
together: bars, and the front of throughput against fairness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairserve.benchmarks.plots import caption, color, save, sheet
from fairserve.benchmarks.simulate.job import SimulationOutcome
from fairserve.benchmarks.simulate.table import Summary

MOST_CLIENTS = 10
"""Maximum curves in one plot: those of the clients with the most service."""


def draw(outcomes: Sequence[SimulationOutcome], folder: Path) -> list[Path]:
    """Draw all plots of these systems; return their paths."""
    paths = []
    for outcome in outcomes:
        if outcome.curves is None:
            continue
        name = outcome.name.replace("/", "-")
        curves = outcome.curves
        service = {c: curves.service_per_s[c] for c in list(curves.service_per_s)[:MOST_CLIENTS]}
        response = {c: curves.response_s[c] for c in list(curves.response_s)[:MOST_CLIENTS]}
        paths += [
            over_time(
                folder / f"service-{name}.png",
                f"{outcome.name}: service received",
                "service per second",
                curves.centres_s,
                service,
            ),
            over_time(
                folder / f"response-{name}.png",
                f"{outcome.name}: time to first token",
                "seconds",
                curves.centres_s,
                response,
            ),
        ]
    summaries = {outcome.name: outcome.summary for outcome in outcomes}
    paths.append(bars(folder / "systems.png", summaries))
    if len(outcomes) > 1:
        paths.append(front(folder / "front.png", summaries))
    return paths


def over_time(
    path: Path,
    title: str,
    y: str,
    centres_s: Sequence[float],
    by_client: Mapping[str, Sequence[float | None]],
) -> Path:
    """Draw a line for each client."""
    figure, [axes] = sheet(1)
    for number, (client, values) in enumerate(by_client.items()):
        line = [float("nan") if value is None else value for value in values]
        axes.plot(centres_s, line, label=client, color=color(number), linewidth=1.2)
    caption(axes, title, "time (s)", y)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, ncols=2)
    return save(figure, path)


def _throughput(summary: Summary) -> float:
    return float(summary["throughput_tokens_per_s"]["total"])


def _ttft_p99_s(summary: Summary) -> float:
    return float(summary["ttft_s"]["p99"] or 0.0)


def _mean_difference(summary: Summary) -> float:
    return float(summary["service_difference"]["avg"])


def _jain(summary: Summary) -> float:
    return float(summary["jain_index"])


_PANELS: tuple[tuple[str, Callable[[Summary], float]], ...] = (
    ("throughput (tokens/s)", _throughput),
    ("TTFT p99 (s)", _ttft_p99_s),
    ("mean service difference (per s)", _mean_difference),
    ("Jain's index", _jain),
)


def bars(path: Path, summaries: Mapping[str, Summary]) -> Path:
    """Draw a bar for each system: throughput, TTFT p99, mean service difference, Jain's index."""
    figure, panels = sheet(len(_PANELS), width=2.9)
    names = list(summaries)
    colors = [color(number) for number in range(len(names))]
    for axes, (title, value) in zip(panels, _PANELS, strict=True):
        axes.barh(names, [value(summaries[name]) for name in names], color=colors)
        axes.invert_yaxis()
        caption(axes, title)
        if axes is not panels[0]:
            axes.set_yticklabels([])
    return save(figure, path)


def front(path: Path, summaries: Mapping[str, Summary]) -> Path:
    """Draw throughput against Jain's index: the best system is at the upper right."""
    figure, [axes] = sheet(1)
    for number, (name, summary) in enumerate(summaries.items()):
        x, y = _throughput(summary), _jain(summary)
        axes.plot(x, y, "o", color=color(number))
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
    caption(axes, "", "throughput (tokens/s)", "Jain's index")
    axes.margins(0.15)
    return save(figure, path)
