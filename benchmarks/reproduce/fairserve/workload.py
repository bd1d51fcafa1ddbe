"""Workload of the FairServe reproductions, and the systems that they compare.

The paper's trace is private, and it states neither model, accelerators, rates, limits, time-outs
nor the N of RPM. Its published numbers imply most of them:

- Server: one A100 with an 8B model computes as many prompt tokens per second as in Table 3.
- Load: well-behaved users request 11,000 prompt tokens per second. RPM, which rejects half of the
  requests, then computes within 2 % of the 11,155 of Table 3.
- Outputs are alike across apps (Figure 3b); prompts are not.
- Abusers send single calls: RPM serves 52 % of the requests of one call, but 85 % of the
  interactions of several (Table 3). The calls are tiny: the greatest rates of a user are 10^6 tokens
  and 10^4 calls a minute (Figure 2), about 100 tokens a call; here 100 of prompt and 30 of output.
- Abusers send more than the 99th percentile of users, 100 calls a minute (Figure 2a): six send 120,
  two 600. They use three apps, as three apps have 99.93 % of the throttled requests (Figure 6a).
- FairServe's limit of a user is that percentile. It has no app limit, which would reject whoever
  calls next, as all interactions are served (Table 3).
- RPM has limits of users and of apps: one of users alone admits everybody's first calls, but only
  92 % of the users are served (Table 3). 120 calls a minute of a user serve half of the requests.
- Table 4: users per app in proportion to its requests, as systems that serve users alike serve 14 to
  21 % of the requests of each app. RPM's app limit is lower: with it RPM serves 0.45 times the
  requests of VTC, as published.

Weakness: the number of abusers is invented, and each floods one app at a steady rate. Loads of 11,000
to 11,500, rates of abusers and app limits were compared on the reported seeds; near 11,500
FairServe rejects more requests than RPM under one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairserve.benchmarks.reproduce.default.costs import OURS
from fairserve.benchmarks.reproduce.fairserve.figures import fairserve_figures
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.benchmarks.traces.assignment import merge
from fairserve.benchmarks.traces.generate.agent_apps import (
    TABLE_2,
    AgentApp,
    GraphClass,
    tokens_per_call,
)
from fairserve.benchmarks.traces.generate.agent_mix import (
    TABLE_4,
    AgentMixOptions,
    generate_agent_mix,
)
from fairserve.benchmarks.traces.generate.arrivals import GammaArrivals
from fairserve.benchmarks.traces.generate.programs import ProgramClient, generate_programs
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.metrics import ABUSIVE
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.base import Limits

Summary = Mapping[str, Any]
Simulated = Mapping[str, Sequence[Summary]]
"""Figures by system, one for each seed."""

COSTS = COST_MODELS["a100-llama3-8b"]
RPM, FS = "rpm", "fs-wi"
LIMITS = Limits(user_rpm=100)
RPM_LIMITS = Limits(user_rpm=120, app_rpm=340)
TABLE_4_RPM_LIMITS = Limits(user_rpm=120, app_rpm=80)
_AS_PUBLISHED = {"feed_window": 1e-6, "immunity_factor": 1e9, "immunity_rule": "profile"}
"""The paper's scheduler is the engine's: nothing waits behind it; immunity has no bound."""

MIX_S = 600.0
_GRAPHS = TABLE_2[:4]
"""Graphs of the runs; larger ones are less than 1 in 10,000 each, and the mix has hundreds of runs."""
_BENIGN_TOKENS_PER_S = 11_000.0
"""Prompt tokens that all well-behaved users request together."""
_ABUSERS_PER_S = (10.0, 10.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0)
"""Calls of each abuser."""

_TABLE_4_S = 60.0
TIMEOUT_S = 60.0
"""Time for which a client of Table 4 waits for a first token."""
_CALLS_PER_RUN = 1.964
"""Mean calls of a run (Table 2)."""
_REQUESTS_PER_USER = 32.0


def systems() -> dict[str, SystemConfig]:
    """Return systems by row name: baselines, FairServe as published, this project's default."""
    return {
        "fcfs": SYSTEMS["fcfs"],
        RPM: SYSTEMS["rpm-1"].with_options({"throttle.scope": "both", "throttle.limit": None}),
        "vtc": SYSTEMS["vtc"],
        "fs-w": SYSTEMS["fs-w"].with_options(_AS_PUBLISHED),
        FS: SYSTEMS[FS].with_options(_AS_PUBLISHED),
        OURS: SYSTEMS[OURS],
    }


def tiny_calls(app: str) -> AgentApp:
    """Return a program of single calls of 100 prompt and 30 output tokens."""
    return AgentApp(app, 100.0, 30.0, classes=(GraphClass(1.0, 1, 1, 100.0, 30.0, 1.0),))


def mix_trace(seed: int, duration_s: float) -> Trace:
    """Return the trace of Table 3 and the figures: well-behaved users of ten apps, and abusers.

    A few runs are ten times as long as others, so arrivals of a Poisson process differ in load from
    seed to seed; they are stretched to exactly the load of the well-behaved.
    """
    options = AgentMixOptions(
        interactions_per_s=1.0,
        abusive_users=0,
        output_spread=1.0,
        duration_s=2.0 * duration_s,
        middle=AgentApp("", *tokens_per_call(_GRAPHS), classes=_GRAPHS),
    )
    drawn = generate_agent_mix(seed, options)
    runs, left = [], _BENIGN_TOKENS_PER_S * duration_s
    for run in drawn.interactions:
        if left <= 0:
            break
        runs.append(run)
        left -= sum(call.input_tokens + call.system_tokens for call in run.calls)
    stretch = duration_s / runs[-1].arrival_s
    benign = drawn.with_interactions(
        [replace(run, arrival_s=stretch * run.arrival_s) for run in runs]
    )
    abusers = [
        ProgramClient(
            f"abuser-{number}",
            tiny_calls(TABLE_4[number % len(TABLE_4)][0].app),
            GammaArrivals(calls_per_s),
            ABUSIVE,
        )
        for number, calls_per_s in enumerate(_ABUSERS_PER_S)
    ]
    flood = generate_programs("flood", abusers, duration_s, seed, tenant="agents")
    return merge([benign, flood], name="fairserve-mix")


def three_apps(seed: int, scale: float) -> Trace:
    """Return the trace of Table 4: runs of its apps until each has its requests, times ``scale``."""
    clients = [
        ProgramClient(
            f"{app.app}-user-{user}",
            AgentApp(app.app, app.prompt_tokens, app.output_tokens),
            GammaArrivals(requests / _CALLS_PER_RUN / users / _TABLE_4_S),
        )
        for app, requests in TABLE_4
        for users in [round(requests / _REQUESTS_PER_USER)]
        for user in range(users)
    ]
    trace = generate_programs(
        "three-apps", clients, 4.0 * _TABLE_4_S, seed, tenant="agents", share_system=True
    )
    left = {app.app: scale * requests for app, requests in TABLE_4}
    runs = []
    for run in trace.interactions:
        if left[run.app] > 0:
            runs.append(run)
            left[run.app] -= len(run.calls)
    return trace.with_interactions(runs)


def simulate_mix(setting: Setting) -> Simulated:
    """Run all systems on the mix."""
    duration_s = MIX_S * setting.scale
    traces = [mix_trace(seed, duration_s) for seed in setting.seed_numbers]
    return _simulate(setting, traces, RPM_LIMITS, ReplayOptions(until_s=duration_s))


def simulate_three_apps(setting: Setting) -> Simulated:
    """Run all systems on the three apps, whose clients abort runs after a time-out."""
    traces = [three_apps(seed, setting.scale) for seed in setting.seed_numbers]
    options = ReplayOptions(first_token_timeout_s=TIMEOUT_S * setting.scale)
    return _simulate(setting, traces, TABLE_4_RPM_LIMITS, options)


def _simulate(
    setting: Setting,
    traces: Sequence[Trace],
    rpm_limits: Limits,
    options: ReplayOptions,
) -> Simulated:
    jobs = {
        name: [
            SimulationJob(
                f"{name} (seed {seed})",
                trace,
                system,
                COSTS,
                replace(options, seed=seed, limits=rpm_limits if name == RPM else LIMITS),
                figures=fairserve_figures,
            )
            for seed, trace in zip(setting.seed_numbers, traces, strict=True)
        ]
        for name, system in systems().items()
    }
    return setting.summaries(jobs)


def setting_text(setting: Setting) -> str:
    """Return the description of the mix."""
    return (
        f"Cost model {COSTS.name} ({COSTS.origin}), one worker. Generated mix: users of ten apps "
        f"who together request {_BENIGN_TOKENS_PER_S:,.0f} prompt tokens/s; {len(_ABUSERS_PER_S)} "
        f"abusers who send {min(_ABUSERS_PER_S):g} to {max(_ABUSERS_PER_S):g} single calls/s of 100 "
        f"prompt and 30 output tokens to three of the apps; {MIX_S * setting.scale:g} s. Limits: "
        f"FairServe {LIMITS.user_rpm} calls a minute of a user under overload; RPM "
        f"{RPM_LIMITS.user_rpm} of a user and {RPM_LIMITS.app_rpm} of an app. fs-w and fs-wi are "
        "as published: charged at the end of a call, unbounded priority and immunity of "
        "interactions, no feed window. The choices follow from the paper's numbers "
        "(`benchmarks/reproduce/fairserve/workload.py`). "
        f"Medians of {setting.seeds} seeds with least and greatest."
    )
