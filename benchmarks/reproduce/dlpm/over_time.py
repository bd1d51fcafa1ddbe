"""Common parts of the DLPM paper's figures with clients over time (8, 9 and 12).

Curves use windows of 30 s. Response is the time to the first token of a call; a program's time is
from its arrival to the end of its last call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from fairserve.benchmarks.reproduce.dlpm.systems import COSTS, OURS_TEXT, server_text, system
from fairserve.benchmarks.reproduce.figure import Figure, Kind, Panel
from fairserve.benchmarks.reproduce.report import Column, Report
from fairserve.benchmarks.reproduce.service_history import ACTUAL, ServiceHistory
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.curves import curves_of
from fairserve.benchmarks.simulate.job import Job
from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.fairness.cost import Extend
from fairserve.scheduling.metrics import Windows

WINDOWS = Windows(half_s=15.0)
PROGRAMS = "program_s"
"""Key of a summary: seconds of each completed program, by client."""


@dataclass(frozen=True, slots=True)
class OverTime:
    """A figure and the parameters of its runs."""

    figure: Figure
    systems: tuple[str, ...]
    workers: int
    trace_of: Callable[[int, float], Trace]
    """Returns the trace of a seed and a scale."""
    costs: CostModel = COSTS
    until_s: float = math.inf
    """End of the runs at scale 1, in seconds; infinite means the last end."""

    def report(self, setting: Setting, workload: str) -> Report:
        """Simulate, read, check and draw. ``workload`` is a description for the report."""
        until_s = self.until_s * setting.scale
        traces = [self.trace_of(seed, setting.scale) for seed in range(setting.seeds)]
        jobs = {
            name: [
                Job(
                    f"Figure {self.figure.number}: {name} ({seed + 1} of {setting.seeds})",
                    trace,
                    system(name),
                    self.costs,
                    ReplayOptions(workers=self.workers, seed=seed, until_s=until_s),
                    windows=WINDOWS,
                    curves=True,
                    figures=partial(more_figures, windows=WINDOWS),
                )
                for seed, trace in enumerate(traces)
            ]
            for name in self.systems
        }
        histories = {
            name: [ServiceHistory.of(outcome, until_s) for outcome in outcomes]
            for name, outcomes in setting.simulate(jobs).items()
        }
        text = (
            f"{server_text(self.costs, self.workers)}. {workload} {OURS_TEXT} "
            f"Medians of {setting.seeds} seeds; the plot shows the first."
        )
        return self.figure.report(setting, text, histories)


def grid(kinds: Sequence[Kind], systems: Sequence[str]) -> tuple[Panel, ...]:
    """Return a row of panels per kind, a column per system."""
    return tuple(Panel(kind, (name,)) for kind in kinds for name in systems)


def more_figures(trace: Trace, result: ReplayResult, *, windows: Windows) -> dict[str, Any]:
    """Return curves by the extend cost, and the duration of each client's programs."""
    programs: dict[str, list[float]] = {}
    for run in result.runs:
        if run.complete:
            client = run.client.rpartition("/")[2]
            programs.setdefault(client, []).append(run.end_s - run.start_s)
    return {ACTUAL: curves_of(result.calls, Extend(), windows), PROGRAMS: programs}


def response(name: str, group: str, statistic: str = "mean") -> Column:
    """Return the column of the time to first token of a group's calls."""
    return Column(name, lambda h: h.summary["groups"][group]["ttft_s"][statistic], 1)


def program_mean(name: str, *clients: str) -> Column:
    """Return the column of the mean seconds of these clients' programs; of all if none is named."""

    def of(history: ServiceHistory) -> float:
        by_client = history.summary[PROGRAMS]
        return fmean(s for c in clients or by_client for s in by_client.get(c, ()))

    return Column(name, of, 1)


THROUGHPUT = Column("tok/s", lambda h: h.tokens_per_s)
HITS = Column("hit rate", lambda h: h.summary["prefix_hit_rate"], 3)
JAIN_ACTUAL = Column("Jain actual", lambda h: h.summary["jain_index_extend"], 3)
END = Column("end (s)", lambda h: h.summary["makespan_s"])
