"""Runs that stop with the arrivals, for Figures 1, 10 and 11.

The load exceeds the workers' capacity, so that clients wait all the time. Figures are of the last
three quarters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fairserve.benchmarks.reproduce.dlpm.systems import COSTS
from fairserve.benchmarks.reproduce.report import ReportColumn
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.system import SystemConfig

TOKENS_PER_S = ReportColumn("tok/s", lambda s: s["steady"]["tokens_per_s"])
JAIN = ReportColumn("Jain", lambda s: s["steady"]["jain_index"], 3)
JAIN_ACTUAL = ReportColumn("Jain actual", lambda s: s["steady"]["jain_index_extend"], 3)
HIT_RATE = ReportColumn("hit rate", lambda s: s["prefix_hit_rate"], 3)


def stopped_jobs(
    name: str,
    traces: Sequence[Trace],
    system: SystemConfig,
    duration_s: float,
    *,
    workers: int = 1,
    figures: Callable[..., dict[str, Any]] = steady,
) -> list[SimulationJob]:
    """Return jobs of a system on the traces of the seeds, stopped after ``duration_s``.

    ``figures`` takes the arguments of :func:`~fairserve.benchmarks.reproduce.steady.steady`.
    """
    return [
        SimulationJob(
            name,
            trace,
            system,
            COSTS,
            ReplayOptions(workers=workers, seed=seed, until_s=duration_s),
            figures=partial(figures, begin_s=duration_s / 4, end_s=duration_s),
        )
        for seed, trace in enumerate(traces)
    ]
