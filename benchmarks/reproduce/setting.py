"""Settings of all reproductions: the folder of recorded traces, the seeds, and how jobs run.

A recorded trace has no seed. Instead the time of a decode step is varied by up to 2 % either way,
the exact model first, so that figures sensitive to small delays show a spread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fairserve.benchmarks.simulate.job import SimulationJob, SimulationOutcome, run_jobs
from fairserve.benchmarks.traces.reading import read_trace
from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.traces.model import Trace, TraceError
from fairserve.scheduling.system import SystemConfig

Case = partial[SimulationJob]
"""A job without its name and its system."""
Summaries = dict[str, list[Mapping[str, Any]]]
"""Figures of the runs of each row, one per seed."""

_DELAYS = (0.0, 0.01, -0.01, 0.02, -0.02)
"""Relative changes of a decode step for the first seeds."""
_MOST = 0.02
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Setting:
    """Options of a reproduction."""

    traces: Path | None = None
    """Folder of the recorded traces."""
    seeds: int = 5
    first_seed: int = 0
    """First seed; parameters are tuned with other seeds than the reported ones."""
    processes: int = 1
    scale: float = 1.0
    """Factor on the durations of generated workloads, for tests."""
    plots: Path | None = None
    """Folder for plots; None draws none."""
    say: Callable[[str], None] = lambda text: None

    @property
    def seed_numbers(self) -> range:
        """Return the seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def recorded(self, name: str) -> Trace:
        """Return a recorded trace. Raises TraceError that explains how to set its folder."""
        path = None if self.traces is None else self.traces / name
        if path is None or not path.is_file():
            where = "no folder is given" if self.traces is None else f"not in {self.traces}"
            raise TraceError(f"{name} is needed: {where}; give --traces DIR or FAIRSERVE_TRACES")
        return read_trace(path)

    def simulate(
        self, jobs: Mapping[str, Sequence[SimulationJob]]
    ) -> dict[str, list[SimulationOutcome]]:
        """Run the jobs of each row, one per seed; return outcomes by the same keys and order."""
        flat = [job for of_row in jobs.values() for job in of_row]
        outcomes = run_jobs(flat, self.processes, self.say)
        return {name: [next(outcomes) for _ in of_row] for name, of_row in jobs.items()}

    def summaries(self, jobs: Mapping[str, Sequence[SimulationJob]]) -> Summaries:
        """Return the summaries of :meth:`simulate` only."""
        return {
            name: [outcome.summary for outcome in outcomes]
            for name, outcomes in self.simulate(jobs).items()
        }


def under(
    systems: Mapping[str, SystemConfig], cases: Sequence[Case], cell: str = ""
) -> dict[str, list[SimulationJob]]:
    """Return the jobs of some cases, one per seed, under each system, by the row's name.

    The name of the cell, if given, is in front of that of the system, with its own separator.
    """
    return {
        f"{cell}{name}": [case(name=f"{cell}{name}", system=system) for case in cases]
        for name, system in systems.items()
    }


def delayed(costs: CostModel, seed: int) -> CostModel:
    """Return the cost model for a seed of a recorded trace."""
    return replace(costs, decode_base_s=costs.decode_base_s * (1.0 + delay_of(seed)))


def delay_of(seed: int) -> float:
    """Return the relative change of a seed: all are distinct, and many cover 2 % either way evenly."""
    if seed < len(_DELAYS):
        return _DELAYS[seed]
    return _MOST * (2 * (seed * _GOLDEN % 1.0) - 1)
