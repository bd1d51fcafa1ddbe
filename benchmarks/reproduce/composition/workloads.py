"""Workloads on which this project's default is compared with the systems of the papers.

There are four kinds, each with one client that floods: trees of thoughts and questions on long
documents (DLPM paper, S1, with the loads of ``dlpm-figure7``), chat with a flood, and three agents
of the recorded traces. The load grows with the workers. In trees and documents even well-behaved
clients request more than their share; in chat less, which shows whether they are isolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from fairserve.benchmarks.reproduce.entitlement import Summary, simulate_with_entitlement
from fairserve.benchmarks.reproduce.report import Column
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.benchmarks.simulate.job import Job
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.assignment import arrive_poisson, merge, window
from fairserve.engine.simulated.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    DlpmLoad,
    Misbehaviour,
    generate_dlpm,
)
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.system import SystemConfig

COSTS = replace(COST_MODELS["a100-llama3-8b"], max_running=256)
OURS = "fairserve"
RECORDED = (
    ("tau_airline_gpt4o.jsonl.gz", 4.0),
    ("autocoderover_run_1.jsonl.gz", 0.4),
    ("sweagent_cost_2_1.jsonl.gz", 1.0),
)
"""Agents, one per client, and the runs per second that each starts for each worker; the first one
floods."""
_WARM_UP = 0.25
"""Fraction of the arrivals after which service is compared."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of requests."""

    duration_s: float
    """Length of the arrivals in seconds; afterwards all calls are served to their end."""
    generate: Callable[[Setting, float, int, int], Trace]
    """Generates a trace from the setting, the seconds, the number of workers and the seed."""


def _programs(name: str, load: DlpmLoad) -> Workload:
    def generate(setting: Setting, duration_s: float, workers: int, seed: int) -> Trace:
        grown = replace(load, workers=workers, duration_s=duration_s)
        return generate_dlpm(name, Misbehaviour.MORE_REQUESTS, seed, load=grown)

    return Workload(load.duration_s, generate)


def _agents(setting: Setting, duration_s: float, workers: int, seed: int) -> Trace:
    parts = []
    for number, (name, runs_per_s) in enumerate(RECORDED):
        trace = setting.recorded(name)
        rate = runs_per_s * workers
        trace = arrive_poisson(trace, rate_per_s=rate, shuffle=True, seed=seed + number)
        group = "well-behaved" if number else "misbehaving"
        parts.append(
            trace.with_interactions(
                [
                    replace(run, user=f"client-{number}", group=group)
                    for run in window(trace, 0.0, duration_s).interactions
                ]
            )
        )
    return merge(parts, name="agents")


WORKLOADS: Mapping[str, Workload] = {
    "tree-of-thoughts": _programs("tree-of-thoughts", DlpmLoad(1.0, duration_s=24.0)),
    "long-context-qa": _programs(
        "long-context-qa",
        replace(DLPM_WORKLOADS["long-context-qa"].load, programs_per_s=1.0, duration_s=60.0),
    ),
    "chat": _programs("chat", DlpmLoad(2.0, flood=8.0, duration_s=60.0)),
    "agents": Workload(90.0, _agents),
}


def simulate_cell(
    setting: Setting, workload: str, workers: int, systems: Mapping[str, SystemConfig]
) -> dict[str, list[Summary]]:
    """Return the summaries of each system on one workload, one per seed, with satisfaction.

    Raises TraceError if the recorded traces are missing.
    """
    kind = WORKLOADS[workload]
    duration_s = kind.duration_s * setting.scale
    begin_s, end_s = _WARM_UP * duration_s, duration_s
    figures = partial(steady, begin_s=begin_s, end_s=end_s)
    traces = [kind.generate(setting, duration_s, workers, seed) for seed in setting.seed_numbers]
    jobs = {
        name: [
            Job(
                f"{workload} D={workers} {name}",
                trace,
                system,
                COSTS,
                ReplayOptions(workers=workers, seed=seed),
                figures=figures,
            )
            for seed, trace in zip(setting.seed_numbers, traces, strict=True)
        ]
        for name, system in systems.items()
    }
    return simulate_with_entitlement(setting, jobs, begin_s, end_s)


THROUGHPUT = Column("tok/s", lambda s: float(s["steady"]["tokens_per_s"]))
TAIL = Column("p99 TTFT (s)", lambda s: float(s["groups"]["well-behaved"]["ttft_s"]["p99"]), 2)


def _within_share_s(summary: Summary) -> float:
    """Return the p99 TTFT of clients within their share; NaN if there are none."""
    found = summary["within_share"]["ttft_p99_s"]
    return math.nan if found is None else float(found)


SATISFIED = Column("satisfied, least", lambda s: float(s["satisfied_min"]), 3)
COLUMNS = (
    THROUGHPUT,
    TAIL,
    SATISFIED,
    Column("mean", lambda s: float(s["satisfied_mean"]), 3),
    Column("p99 TTFT within share (s)", lambda s: _within_share_s(s), 2),
    Column("Jain extend", lambda s: float(s["steady"]["jain_index_extend"]), 3),
    Column(
        "p99 run (s)",
        lambda s: float(s["groups"]["well-behaved"]["interaction_latency_s"]["p99"]),
        1,
    ),
    Column("hit rate", lambda s: float(s["prefix_hit_rate"]), 3),
)
"""Tail and latency are those of the well-behaved clients; service is compared within the arrivals."""


class Compared(NamedTuple):
    """A figure by which systems are compared."""

    column: Column
    high: bool
    """True if greater values are better."""


COMPARED = (Compared(THROUGHPUT, True), Compared(TAIL, False), Compared(SATISFIED, True))


def setting_text(setting: Setting) -> str:
    """Return the description of the workloads for the report."""
    agents = ", ".join(f"{name.split('.')[0]} {rate:g}" for name, rate in RECORDED)
    return (
        f"Cost model {COSTS.name} ({COSTS.origin}), batch {COSTS.max_running}. Three clients, one "
        "floods. Trees of thoughts S1 (1.0 trees a second, client and worker, 24 s), long "
        "documents S1 (1.0, the flooder 4 times that, 60 s), chat (2.0, the flooder 8 times that, "
        f"60 s), three recorded agents (runs a second and worker: {agents}; the first floods; "
        "90 s). Throughput and Jain's index within the last three quarters of the arrivals; tails "
        f"over all calls, to the last end. Medians of {setting.seeds} seeds with least and greatest."
    )
