"""Workload of the FairServe reproductions, and the systems that they compare.

The paper's trace is private, so the mix is generated from its numbers (``agent_mix.py``). The paper
states neither its model and accelerators, nor its rate, its limits or the N of RPM. The values are
chosen so that abusers overload the server as described, and each is stated in the reports: one A100
with an 8B model, which computes about as many prompt tokens per second as reported in its Table 3;
well-behaved users who need less than half of that; eight abusers who request three times its
capacity. FairServe's limits are twice the busiest minute of any well-behaved user of the mix (28
calls over three seeds), as from historical data. RPM has two limits: 20, with which about half of
the requests are served, as in Table 3, and the server is still overloaded; and 5, which ends the
overload at the expense of well-behaved users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fairserve.benchmarks.reproduce.fairserve.figures import fairserve_figures
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.job import Job
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.generate.agent_mix import AgentMixOptions, generate_agent_mix
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.base import Limits

COSTS = COST_MODELS["a100-llama3-8b"]
LIMITS = Limits(user_rpm=50, app_rpm=200)
MIX = AgentMixOptions(
    interactions_per_s=0.5,
    abusive_users=8,
    abusive_interactions_per_s=0.5,
    duration_s=600.0,
)
RPM, STRICT_RPM = "rpm-20", "rpm-5"
FS, OURS = "fs-wi", "fairserve"
_AS_PUBLISHED = {"feed_window": 1e-6, "immunity_factor": 1e9, "immunity_rule": "profile"}
"""The paper's scheduler is the engine's: nothing waits behind it; immunity has no bound."""
FS_MENDED = "fs-wi, charged at selection"
OURS_UNWEIGHED = "fairserve, any match within the slack"

Summary = Mapping[str, Any]


def systems() -> dict[str, SystemConfig]:
    """Return systems by row name: baselines, FairServe as published, this project's default."""
    return {
        "fcfs": SYSTEMS["fcfs"],
        STRICT_RPM: SYSTEMS[STRICT_RPM],
        RPM: SYSTEMS[RPM],
        "vtc": SYSTEMS["vtc"],
        "fs-w": SYSTEMS["fs-w"].with_options(_AS_PUBLISHED),
        FS: SYSTEMS[FS].with_options(_AS_PUBLISHED),
        OURS: SYSTEMS[OURS],
    }


def variants() -> dict[str, SystemConfig]:
    """Return two of them with one change each, to show why a claim does not hold.

    FairServe charged at the selection of a call instead of its end, with a bounded priority of
    active runs; and this project's default with the same slack for every match, regardless of its
    gain.
    """
    at_selection = {"feeder.charge": "expected", "feeder.interaction_slack": 1.0}
    return {
        FS_MENDED: SYSTEMS[FS].with_options({**_AS_PUBLISHED, **at_selection}),
        OURS_UNWEIGHED: SYSTEMS[OURS].with_options({"feeder.locality_gain": False}),
    }


def simulated(
    setting: Setting,
    chosen: Mapping[str, SystemConfig],
    trace_of: Callable[[int], Trace],
    until_s: float,
) -> dict[str, list[Summary]]:
    """Return the summaries of each system, one per seed."""
    jobs: dict[str, Sequence[Job]] = {
        name: [
            Job(
                f"{name} ({seed + 1} of {setting.seeds})",
                trace_of(seed),
                system,
                COSTS,
                ReplayOptions(until_s=until_s, seed=seed, limits=LIMITS),
                figures=fairserve_figures,
            )
            for seed in range(setting.seeds)
        ]
        for name, system in chosen.items()
    }
    return setting.summaries(jobs)


@lru_cache(maxsize=1)
def simulated_mix(setting: Setting) -> dict[str, list[Summary]]:
    """Run all systems and variants on the mix. Table 3 and the figures share one simulation."""
    return simulate_mix(setting, systems() | variants())


def simulate_mix(setting: Setting, chosen: Mapping[str, SystemConfig]) -> dict[str, list[Summary]]:
    """Run some systems on the mix."""
    duration_s = MIX.duration_s * setting.scale
    options = replace(MIX, duration_s=duration_s)
    traces = [generate_agent_mix(seed, options) for seed in range(setting.seeds)]
    return simulated(setting, chosen, traces.__getitem__, duration_s)


def limits_text() -> str:
    """Return the limits, and the definition of FairServe as published here."""
    return (
        f"Limits under overload: {LIMITS.user_rpm} calls a minute of a user, {LIMITS.app_rpm} of an "
        "app. fs-w and fs-wi as published: charged at the end of a call, unbounded priority and "
        f"immunity of interactions, no feed window. The paper's RPM row is beside {RPM}; {STRICT_RPM} "
        "is a stricter limit."
    )


def setting_text(setting: Setting) -> str:
    """Return the description of the mix for the report."""
    return (
        f"Cost model {COSTS.name} ({COSTS.origin}), one worker. Generated mix: ten apps, "
        f"{MIX.users:,} users who together start {MIX.interactions_per_s:g} interactions/s, "
        f"{MIX.abusive_users} abusers who each start {MIX.abusive_interactions_per_s:g}/s, replayed "
        f"for {MIX.duration_s * setting.scale:g} s and stopped. {limits_text()} The paper names "
        "neither model, accelerators, rates, limits nor its N of RPM. Medians of "
        f"{setting.seeds} seeds with least and greatest."
    )
