"""``unsaturated``: a system that is not saturated must not queue.

The trace is ten minutes of recorded conversations (Azure, 2023), one call each; a few of the 30
users have most. Arrivals keep their recorded pattern, stretched so that the total load is half of
the workers' capacity under FCFS when everything waits at once. Then no client has to wait for
another, so the tail of the TTFT must be that of FCFS, within a twentieth.
"""

from __future__ import annotations

from dataclasses import replace

from fairserve.benchmarks.reproduce.default.costs import COSTS, OURS
from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, rows_of
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.benchmarks.traces.assignment import (
    arrive_at_once,
    assign_users,
    scale_time,
    window,
)
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.registry import SYSTEMS

TRACE = "azure_llm_2023_conv.csv.gz"
DURATION_S = 600.0
USERS = 30
WORKERS = 2
LOAD = 0.5
"""Offered load as a share of capacity."""
MOST = 1.05
"""Maximum p99 as a multiple of that of FCFS."""
PLAIN = "fcfs"
_SYSTEMS = (PLAIN, "vtc", "d2lpm", OURS)

TAIL = ReportColumn("p99 TTFT (s)", lambda s: float(s["ttft_s"]["p99"]), 3)
COLUMNS = (
    ReportColumn("p50 TTFT (s)", lambda s: float(s["ttft_s"]["p50"]), 3),
    TAIL,
    ReportColumn("p99 call (s)", lambda s: float(s["interaction_latency_s"]["p99"]), 2),
    ReportColumn("busy %", lambda s: 100 * float(s["busy_share"]), 1),
)


def unsaturated(setting: Setting) -> Report:
    """Return a row per system. Raises TraceError if the recorded trace is missing."""
    recorded = window(setting.recorded(TRACE), 0.0, DURATION_S * setting.scale)
    traces = [
        assign_users(recorded, users=USERS, skew=1.0, seed=seed) for seed in setting.seed_numbers
    ]
    options = ReplayOptions(workers=WORKERS)
    at_once = [
        SimulationJob("at once", arrive_at_once(each), SYSTEMS[PLAIN], COSTS, options)
        for each in traces
    ]
    capacity = setting.summaries({"at once": at_once})["at once"]
    stretched = [
        _at_load(trace, float(summary["makespan_s"]))
        for trace, summary in zip(traces, capacity, strict=True)
    ]
    jobs = {
        name: [
            SimulationJob(name, trace, SYSTEMS[name], COSTS, replace(options, seed=seed))
            for seed, trace in zip(setting.seed_numbers, stretched, strict=True)
        ]
        for name in _SYSTEMS
    }
    rows = rows_of(COLUMNS, setting.summaries(jobs))
    ours, plain = (rows[name].measured[TAIL.name].value for name in (OURS, PLAIN))
    return Report(
        "unsaturated",
        "recorded conversations at half of capacity",
        f"Cost model {COSTS.name} ({COSTS.origin}), {WORKERS} workers. {len(recorded):,} conversations "
        f"of {TRACE}, {USERS} users, {LOAD:.0%} of capacity. Medians of {setting.seeds} seeds (users).",
        COLUMNS,
        list(rows.values()),
        [
            Check(
                f"{OURS}: p99 TTFT at most {MOST:g} times that of {PLAIN}",
                ours <= MOST * plain,
                f"{ours / plain:.3f} times",
            )
        ],
    )


def _at_load(trace: Trace, busy_s: float) -> Trace:
    """Return the trace stretched so that the workers are busy for ``LOAD`` of the time."""
    last_s = max(run.arrival_s for run in trace.interactions)
    return scale_time(trace, busy_s / LOAD / last_s)
