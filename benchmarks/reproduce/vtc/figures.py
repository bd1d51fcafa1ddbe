"""Figures of the VTC paper, each as checked claims: Figures 3 to 16, 18 and 19."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.vtc.paper import SyntheticFigure, generated_figures
from fairserve.benchmarks.reproduce.vtc.recorded import recorded_figures
from fairserve.benchmarks.reproduce.vtc.tables import LENGTH_S, configured
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.benchmarks.traces.generate.vtc_suites import VTC_SUITES, generate_vtc_suite
from fairserve.engine.simulated.cost_model import (
    COST_MODELS,
    Accelerator,
    CostModel,
    ModelShape,
    roofline,
)
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.metrics import VTC_TABLES

_A10G = COST_MODELS["a10g-llama2-7b"]
_A100_13B = replace(
    roofline(
        "a100-llama2-13b",
        Accelerator(312e12, 2.0e12, 80e9),
        ModelShape(13.02e9, layers=40, hidden=5120, kv_heads=40, head_dim=128),
    ),
    loop=_A10G.loop,
    max_running=_A10G.max_running,
)
"""Llama-2-13b on one A100 80GB; the loop is that of the paper's code."""

FIGURES: Mapping[int, SyntheticFigure] = MappingProxyType(generated_figures())
"""Figures on generated workloads, by number."""


def vtc_figures(setting: Setting) -> list[Report]:
    """Return a report per figure, in order."""
    recorded = recorded_figures(setting)
    reports = [synthetic_figure(setting, number) for number in FIGURES]
    return sorted([*recorded, *reports], key=lambda each: int(each.name.removeprefix("vtc-figure")))


def synthetic_figure(setting: Setting, number: int) -> Report:
    """Return the report of a figure on generated workloads."""
    spec = FIGURES[number]
    scale = 1.0 if spec.whole else setting.scale * spec.share
    traces: dict[tuple[str, int], Trace] = {}
    jobs: dict[str, list[SimulationJob]] = {}
    shown_s: dict[str, float] = {}
    for run in spec.runs:
        suite = VTC_SUITES[run.suite]
        shown_s[run.name] = max(LENGTH_S, suite.duration_s) * scale
        jobs[run.name] = []
        for seed in range(setting.seeds):
            key = run.suite, seed
            if key not in traces:
                traces[key] = generate_vtc_suite(run.suite, seed, until_s=suite.duration_s * scale)
            options = ReplayOptions(
                until_s=math.inf if spec.to_end else shown_s[run.name],
                seed=seed,
                weights=suite.weights if run.weighted else {},
            )
            jobs[run.name].append(
                SimulationJob(
                    f"Figure {number}: {run.name} ({seed + 1} of {setting.seeds})",
                    traces[key],
                    configured(run.system),
                    _costs(run.suite),
                    options,
                    windows=VTC_TABLES,
                    curves=True,
                )
            )
    histories = {
        name: [ServiceHistory.of(outcome, shown_s[name]) for outcome in outcomes]
        for name, outcomes in setting.simulate(jobs).items()
    }
    return spec.figure.report(setting, _text(setting, spec), histories)


def _costs(suite: str) -> CostModel:
    chosen = VTC_SUITES[suite]
    costs = _A10G if chosen.server == _A10G.name else _A100_13B
    return replace(costs, kv_capacity_tokens=chosen.pool_tokens)


def _text(setting: Setting, spec: SyntheticFigure) -> str:
    suites = list(dict.fromkeys(run.suite for run in spec.runs))
    costs = _costs(suites[0])
    pools = " or ".join(f"{n:,}" for n in sorted({VTC_SUITES[s].pool_tokens for s in suites}))
    part = "" if spec.share == 1.0 else f" (the first {spec.share:.0%})"
    return (
        f"Workload {', '.join(suites)}{part}; cost model {costs.name} ({costs.origin}), the loop of the "
        f"paper's code, a pool of {pools} tokens; {setting.seeds} seeds: medians, and a claim holds "
        "if it does for each. Service is input + 2 * output tokens."
    )
