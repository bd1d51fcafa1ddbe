"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairserve.benchmarks.bench.figure import BenchResult, Figure
from fairserve.benchmarks.text_table import aligned

Row = tuple[str, ...]

_HEAD: Row = ("figure", "value", "spread", "target", "aim", "peers")


def table(results: Sequence[BenchResult]) -> str:
    """Return a table with one line per figure; ``*`` marks a missed target."""
    return aligned(_HEAD, [_row(result) for result in results], left=(0, len(_HEAD) - 1))


def details(results: Sequence[BenchResult]) -> str:
    """Return the details of the workloads, one line each."""
    lines, listed = [], set()
    for result in results:
        if not result.details or id(result.details) in listed:
            continue
        listed.add(id(result.details))
        numbers = ", ".join(f"{name} {number(value)}" for name, value in result.details.items())
        lines.append(f"{result.figure.name}: {numbers}")
    return "\n".join(lines)


def to_plain(
    machine: Mapping[str, Any], results: Sequence[BenchResult], rounds: int
) -> dict[str, Any]:
    """Return the JSON document of ``--json``."""
    return {
        "machine": dict(machine),
        "method": {
            "rounds": rounds,
            "value": "median over the rounds of the round's mean, or of its p99 where named so",
            "garbage_collector": "frozen and off during a round, run between rounds",
            "clock": "CPU time of the thread",
            "threads": 1,
        },
        "figures": [result.to_plain() for result in results],
    }


def number(value: float) -> str:
    """Return a number with three significant digits and thousands separators."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _row(result: BenchResult) -> Row:
    figure = result.figure
    target = figure.target
    missed = "" if target is None or figure.reached(result.value, target) else " *"
    spread = f"{number(min(result.values))} - {number(max(result.values))}"
    peers = ", ".join(f"{name} {number(value)}" for name, value in figure.peers.items())
    return (
        figure.name,
        number(result.value) + missed,
        spread,
        _goal(figure, target),
        _goal(figure, figure.aim),
        peers,
    )


def _goal(figure: Figure, goal: float | None) -> str:
    if goal is None:
        return ""
    return f"{'>=' if figure.higher_is_better else '<='} {number(goal)}"
