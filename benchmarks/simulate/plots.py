"""Plots of a simulation as PNG files, in the forms that the papers use.

Per system: the service that each client receives over time, and its response time. Over all systems:
bars, and the front of throughput against fairness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fairserve.benchmarks.simulate.job import Outcome
from fairserve.benchmarks.simulate.table import Summary

MOST_CLIENTS = 10
"""Curves in one plot: the clients with most service."""
COLORS = (
    "#1f5c99", "#c2492d", "#3f8f4f", "#8a5aa8", "#b8860b",
    "#2aa0a4", "#d0699a", "#6b6b6b", "#7a9a1f", "#4c4cc0",
)  # fmt: skip


def draw(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """All plots of these systems, in a folder that is made if it is missing; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
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
    """A line a client."""
    figure, [axes] = sheet(1)
    for (client, values), color in zip(by_client.items(), COLORS, strict=False):
        line = [float("nan") if value is None else value for value in values]
        axes.plot(centres_s, line, label=client, color=color, linewidth=1.2)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("time (s)")
    axes.set_ylabel(y)
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
    """A bar a system: throughput, TTFT p99, mean service difference, Jain's index."""
    figure, panels = sheet(len(_PANELS), width=2.9)
    names = list(summaries)
    colors = [COLORS[number % len(COLORS)] for number in range(len(names))]
    for axes, (title, value) in zip(panels, _PANELS, strict=True):
        axes.barh(names, [value(summaries[name]) for name in names], color=colors)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8)
        if axes is not panels[0]:
            axes.set_yticklabels([])
    return save(figure, path)


def front(path: Path, summaries: Mapping[str, Summary]) -> Path:
    """Throughput against Jain's index: the best is at the upper right."""
    figure, [axes] = sheet(1)
    for number, (name, summary) in enumerate(summaries.items()):
        x, y = _throughput(summary), _jain(summary)
        axes.plot(x, y, "o", color=COLORS[number % len(COLORS)])
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.set_xlabel("throughput (tokens/s)")
    axes.set_ylabel("Jain's index")
    axes.margins(0.15)
    return save(figure, path)


def sheet(
    panels: int, *, width: float = 5.6, height: float = 3.6, across: int | None = None
) -> tuple[Figure, list[Axes]]:
    """An empty figure with so many panels of ``width`` by ``height`` inches, beside each other or
    ``across`` in a row.
    """
    in_a_row = across or panels
    rows = -(-panels // in_a_row)
    figure = Figure(figsize=(width * in_a_row, height * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, in_a_row, number + 1) for number in range(panels)]
    for each in axes:
        each.grid(alpha=0.3)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    """Write it; the same figure makes the same bytes."""
    figure.savefig(path, metadata={"Software": None})
    return path
