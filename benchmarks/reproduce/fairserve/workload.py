"""Workload of the FairServe reproductions, and the systems that they compare.

The numbers and how they follow from the paper's are in ``paper.toml``. Abusers' calls are tiny: the
greatest rates of a user are 10^6 tokens and 10^4 calls a minute (Figure 2), about 100 tokens a call;
here 100 of prompt and 30 of output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairserve.benchmarks.reproduce.fairserve.figures import fairserve_figures
from fairserve.benchmarks.reproduce.setting import Case, Setting, Summaries, under
from fairserve.benchmarks.reproduce.study import read_study
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

STUDY = read_study(__file__)
_WORKLOAD: Mapping[str, Any] = STUDY["workload"]
COSTS = COST_MODELS["a100-llama3-8b"]
_AS_PUBLISHED = {"feed_window": 1e-6, "immunity_factor": 1e9, "immunity_rule": "profile"}
"""The paper's scheduler is the engine's: nothing waits behind it; immunity has no bound."""
_GRAPHS = TABLE_2[:4]
"""Graphs of the runs; larger ones are less than 1 in 10,000 each, and the mix has hundreds of runs."""


def systems() -> dict[str, SystemConfig]:
    """Return systems by row name: baselines, FairServe as published, this project's default."""
    return {
        "fcfs": SYSTEMS["fcfs"],
        "rpm": SYSTEMS["rpm-1"].with_options({"throttle.scope": "both", "throttle.limit": None}),
        "vtc": SYSTEMS["vtc"],
        "fs-w": SYSTEMS["fs-w"].with_options(_AS_PUBLISHED),
        "fs-wi": SYSTEMS["fs-wi"].with_options(_AS_PUBLISHED),
        "fairserve": SYSTEMS["fairserve"],
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
    runs, left = [], _WORKLOAD["tokens_per_s"] * duration_s
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
        for number, calls_per_s in enumerate(_WORKLOAD["abusers_per_s"])
    ]
    flood = generate_programs("flood", abusers, duration_s, seed, tenant="agents")
    return merge([benign, flood], name="fairserve-mix")


def three_apps(seed: int, scale: float) -> Trace:
    """Return the trace of Table 4: runs of its apps until each has its requests, times ``scale``."""
    clients = [
        ProgramClient(
            f"{app.app}-user-{user}",
            AgentApp(app.app, app.prompt_tokens, app.output_tokens),
            GammaArrivals(requests / _WORKLOAD["calls_per_run"] / users / _WORKLOAD["table4_s"]),
        )
        for app, requests in TABLE_4
        for users in [round(requests / _WORKLOAD["requests_per_user"])]
        for user in range(users)
    ]
    trace = generate_programs(
        "three-apps", clients, 4.0 * _WORKLOAD["table4_s"], seed, tenant="agents", share_system=True
    )
    left = {app.app: scale * requests for app, requests in TABLE_4}
    runs = []
    for run in trace.interactions:
        if left[run.app] > 0:
            runs.append(run)
            left[run.app] -= len(run.calls)
    return trace.with_interactions(runs)


def simulate_mix(setting: Setting) -> Summaries:
    """Run all systems on the mix."""
    duration_s = _WORKLOAD["mix_s"] * setting.scale
    traces = [mix_trace(seed, duration_s) for seed in setting.seed_numbers]
    return _simulate(setting, traces, "rpm_limits", ReplayOptions(until_s=duration_s))


def simulate_three_apps(setting: Setting) -> Summaries:
    """Run all systems on the three apps, whose clients abort runs after a time-out."""
    traces = [three_apps(seed, setting.scale) for seed in setting.seed_numbers]
    options = ReplayOptions(first_token_timeout_s=_WORKLOAD["timeout_s"] * setting.scale)
    return _simulate(setting, traces, "table4_rpm_limits", options)


def _simulate(
    setting: Setting, traces: Sequence[Trace], rpm_limits: str, options: ReplayOptions
) -> Summaries:
    jobs: dict[str, list[SimulationJob]] = {}
    for name, system in systems().items():
        limits = Limits(**_WORKLOAD[rpm_limits if name == "rpm" else "limits"])
        cases = [
            Case(
                SimulationJob,
                trace=trace,
                costs=COSTS,
                options=replace(options, seed=seed, limits=limits),
                figures=fairserve_figures,
            )
            for seed, trace in zip(setting.seed_numbers, traces, strict=True)
        ]
        jobs |= under({name: system}, cases)
    return setting.summaries(jobs)


def text_values(setting: Setting) -> dict[str, object]:
    """Return the values of the fields in the texts."""
    return {
        "costs": f"{COSTS.name} ({COSTS.origin})",
        "mix_s": _WORKLOAD["mix_s"] * setting.scale,
        "timeout_s": _WORKLOAD["timeout_s"] * setting.scale,
        "requests": ", ".join(f"{count} requests of {app.app}" for app, count in TABLE_4),
    }
