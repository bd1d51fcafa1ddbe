"""Common parts of the VTC paper's figures on synthetic workloads.

``U = max(wp * Linput, wq * M)`` as in the paper, with wp = 1, wq = 2 and M the tokens of the pool.
Service may differ by 2 U over any interval in which both clients are backlogged (Theorem 4.4).
Where the paper uses words such as "small", "immediately" or "the same", the limit is ours; each
claim names it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.benchmarks.reproduce.figure import Kind, Panel, PaperFigure
from fairserve.benchmarks.reproduce.report import ReportColumn
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.vtc.tables import OURS

FAIR = ("vtc", OURS)
Minutes = list[tuple[float, float]]
"""Start and end of each period in seconds."""


def bound(pool_tokens: int, input_tokens: int = 256) -> float:
    """Return 2 U of Theorem 4.4."""
    return 2.0 * max(input_tokens, 2 * pool_tokens)


BOUND = bound(10_000)
"""Bound 2 U for the pool of all workloads except those of Figure 15."""

DIFFERENCE = ReportColumn("largest difference", lambda h: h.largest_difference)
INTERVAL = ReportColumn("while backlogged", lambda h: h.interval_difference)
GROWTH = ReportColumn("growth /min", lambda h: h.growth_per_min)
THROUGHPUT = ReportColumn("tok/s", lambda h: h.tokens_per_s)


@dataclass(frozen=True, slots=True)
class SyntheticRun:
    """A row of a figure."""

    name: str
    suite: str
    system: str
    weighted: bool = False
    """True if the clients have the weights of the workload."""


@dataclass(frozen=True, slots=True)
class SyntheticFigure:
    """A figure and its runs."""

    figure: PaperFigure
    runs: tuple[SyntheticRun, ...]
    to_end: bool = False
    """Serve all calls, so that each has a response time; otherwise the run stops after ten minutes,
    or with arrivals that last longer."""
    whole: bool = False
    """Never shorten the workload: its effect occurs late."""
    share: float = 1.0
    """Fraction of the duration."""


def runs_of(suite: str, *systems: str) -> tuple[SyntheticRun, ...]:
    """Return a row per system, with its name."""
    return tuple(SyntheticRun(system, suite, system) for system in systems)


def panels(kind: Kind, *rows: str) -> tuple[Panel, ...]:
    """Return a panel per row, with its clients."""
    return tuple(Panel(kind, (row,)) for row in rows)


def minutes(history: ServiceHistory, begin_s: float, skip_s: float = 0.0) -> Minutes:
    """Return every second minute from ``begin_s`` on, each without its first seconds."""
    number = int((history.end_s - begin_s + 60.0) / 120.0)
    starts = [begin_s + 120.0 * each for each in range(number)]
    return [(start + skip_s, start + 60.0) for start in starts]


def minutes_off(history: ServiceHistory) -> Minutes:
    """Return the minutes in which the on/off client sends nothing."""
    return minutes(history, 60.0)


def mean_of(history: ServiceHistory, parts: Minutes, client: str = "") -> float:
    """Return service per second over these equally long parts, of a client or of all."""
    of_each = [
        history.served_per_s(client, *part) if client else history.total_per_s(*part)
        for part in parts
    ]
    return sum(of_each) / len(of_each)
