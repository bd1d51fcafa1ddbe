"""One system on one trace, and many such jobs on several cores.

A job's result is plain values: the figures of :func:`fairserve.scheduling.metrics.summarise` and,
if plots are requested, curves over time. Equal jobs give equal results with any number of
processes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairserve.benchmarks.simulate.curves import Curves, curves_of
from fairserve.benchmarks.simulate.declared import profile_figures
from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.replay_watcher import ReplayWatcher
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.scheduling.fairness.cost import Cost, Linear
from fairserve.scheduling.metrics import Windows, summarise
from fairserve.scheduling.system import SystemConfig

Say = Callable[[str], None]
Figures = Callable[[Trace, ReplayResult], Mapping[str, Any]]


class FiguringWatcher(ReplayWatcher, Protocol):
    """Observes one replay, and returns figures of it at the end."""

    def run_ended(self, end: RunEnd, opened_s: float, ended_s: float) -> None:
        """Do nothing unless overridden: only calls count."""
        return

    def figures(self, result: ReplayResult) -> Mapping[str, Any]:
        """Return figures for the summary, under keys of their own."""
        ...


@dataclass(frozen=True, slots=True)
class SimulationJob:
    """One simulation; ``name`` is unique among the jobs of a command."""

    name: str
    trace: Trace
    system: SystemConfig
    costs: CostModel
    options: ReplayOptions = field(default_factory=ReplayOptions)
    cost: Cost = field(default_factory=Linear)
    """Cost function of service."""
    demand_cost: Cost | None = None
    """Cost function of demand; None: that of service."""
    windows: Windows = field(default_factory=Windows)
    curves: bool = False
    figures: Figures | None = None
    """Returns further figures for the summary, under additional keys; a function of a module."""
    watch: Callable[[], FiguringWatcher] | None = None
    """Factory of an observer, for figures that calls and runs do not contain."""
    replay: type[Replay] = Replay
    """Replay class, for experiments in which clients behave differently."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The result of a job."""

    name: str
    summary: dict[str, Any]
    curves: Curves | None = field(default=None, compare=False)


def run_job(
    job: SimulationJob, say: Say = lambda text: None, watcher: ReplayWatcher | None = None
) -> SimulationOutcome:
    """Run the simulation; ``say`` periodically receives the progress."""
    own = None if job.watch is None else job.watch()
    assert own is None or watcher is None, "a replay has one watcher"
    replay = job.replay(job.trace, job.system, job.costs, job.options, own or watcher)
    result = replay.run(lambda ended, calls: say(f"{job.name}: {ended:,} of {calls:,} calls"))
    summary = summarise(
        result.calls,
        result.runs,
        cost=job.cost,
        demand_cost=job.demand_cost,
        windows=job.windows,
    )
    summary["busy_share"] = result.busy_share
    if job.options.learning is not None:
        summary["profiles"] = profile_figures(result.profiles)
    if job.figures is not None:
        summary |= job.figures(job.trace, result)
    if own is not None:
        summary |= own.figures(result)
    curves = curves_of(result.calls, job.cost, job.windows) if job.curves else None
    return SimulationOutcome(job.name, summary, curves)


def run_jobs(
    jobs: Sequence[SimulationJob], processes: int = 1, say: Say = lambda text: None
) -> Iterator[SimulationOutcome]:
    """Run all jobs on ``processes`` cores; return outcomes in their order."""
    if processes == 1 or len(jobs) == 1:
        for job in jobs:
            yield run_job(job, say)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=context) as pool:
        for outcome in pool.map(run_job, jobs):
            say(f"{outcome.name}: done")
            yield outcome
