"""Figures of the VTC paper on generated workloads: 3 to 10, 15, 16 and 19, of ``paper.toml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.setting import Case, Setting, under
from fairserve.benchmarks.reproduce.study import Entry, drawn, report_of
from fairserve.benchmarks.reproduce.vtc.generated import COLUMNS
from fairserve.benchmarks.reproduce.vtc.panels import panels_of
from fairserve.benchmarks.reproduce.vtc.recorded import recorded_figures
from fairserve.benchmarks.reproduce.vtc.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.vtc.tables import LENGTH_S, STUDY, configured, figure_entry
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

FIGURES: Mapping[int, Entry] = {entry["number"]: entry for entry in STUDY["figure"]}
"""Figures on generated workloads, by number."""


def vtc_figures(setting: Setting) -> list[Report]:
    """Return a report per figure, in order."""
    recorded = recorded_figures(setting)
    reports = [synthetic_figure(setting, number) for number in FIGURES]
    return sorted([*recorded, *reports], key=lambda each: int(each.name.removeprefix("vtc-figure")))


def runs_of(entry: Entry) -> list[Entry]:
    """Return the rows of a figure: name, suite, system, and whether it has the suite's weights."""
    if "runs" in entry:
        return list(entry["runs"])
    return [{"name": each, "suite": entry["suite"], "system": each} for each in entry["systems"]]


def synthetic_figure(setting: Setting, number: int) -> Report:
    """Return the report of a figure on generated workloads.

    With ``to_end`` all calls are served, so that each has a response time; otherwise a run stops after
    ten minutes, or with arrivals that last longer. ``whole`` workloads are never shortened: their
    effect occurs late. ``share`` is the part of the duration.
    """
    entry = FIGURES[number]
    scale = 1.0 if entry.get("whole") else setting.scale * entry.get("share", 1.0)
    jobs: dict[str, list[SimulationJob]] = {}
    shown_s: dict[str, float] = {}
    for run in runs_of(entry):
        suite = VTC_SUITES[run["suite"]]
        shown_s[run["name"]] = max(LENGTH_S, suite.duration_s) * scale
        cases = [
            Case(
                SimulationJob,
                trace=generate_vtc_suite(run["suite"], seed, until_s=suite.duration_s * scale),
                costs=_costs(run["suite"]),
                options=ReplayOptions(
                    until_s=math.inf if entry.get("to_end") else shown_s[run["name"]],
                    seed=seed,
                    weights=suite.weights if run.get("weighted") else {},
                ),
                windows=VTC_TABLES,
                curves=True,
            )
            for seed in setting.seed_numbers
        ]
        jobs |= under({run["name"]: configured(run["system"])}, cases)
    histories = {
        name: [ServiceHistory.of(outcome, shown_s[name]) for outcome in outcomes]
        for name, outcomes in setting.simulate(jobs).items()
    }
    suites = list(dict.fromkeys(run["suite"] for run in runs_of(entry)))
    costs = _costs(suites[0])
    part = entry.get("share", 1.0)
    report = report_of(
        figure_entry(entry, "of_figures"),
        COLUMNS,
        setting,
        histories,
        suites=", ".join(suites) + ("" if part == 1.0 else f" (the first {part:.0%})"),
        costs=f"{costs.name} ({costs.origin})",
        pools=" or ".join(f"{n:,}" for n in sorted({VTC_SUITES[s].pool_tokens for s in suites})),
    )
    return drawn(setting, report, panels_of(entry, histories, {}), across=3, legend=False)


def _costs(suite: str) -> CostModel:
    chosen = VTC_SUITES[suite]
    costs = _A10G if chosen.server == _A10G.name else _A100_13B
    return replace(costs, kv_capacity_tokens=chosen.pool_tokens)
