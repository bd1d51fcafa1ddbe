"""``dlpm-figure1`` and ``dlpm-figure7``: their simulations and plots; the rest is in ``paper.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fairserve.benchmarks.plots import PlotLine, PlotPanel, color
from fairserve.benchmarks.reproduce.entitlement import simulate_with_entitlement
from fairserve.benchmarks.reproduce.report import Report, ReportRow
from fairserve.benchmarks.reproduce.setting import Case, Setting, Summaries, under
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.benchmarks.reproduce.study import Entry, columns_of, drawn, read_study, report_of
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.benchmarks.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    Misbehaviour,
    generate_dlpm,
)
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

# Batches are bounded by memory alone, like those of the paper's engine.
_COSTS_1 = replace(COST_MODELS["a10g-llama3.2-3b"], max_running=4096)
_COSTS_7 = replace(COST_MODELS["a100-llama3-8b"], max_running=4096)
_STUDY = read_study(__file__)
_COLUMNS = columns_of(_STUDY["columns"])
FIGURE_1, FIGURE_7 = _STUDY["report"]
_PUBLISHED = {"local.max_bypass": 0, "local.refill_when_stuck": False}
"""Algorithm 1 exactly as published, without this project's additions for calls that do not fit."""
_VARIANTS: Mapping[str, Mapping[str, Any]] = {"dlpm": {}, "dlpm, published": _PUBLISHED}
_ENDS = ("vtc", "lpm", "fairserve")
_DRAWN = {
    "tok/s": "tokens/s",
    "satisfied": "least satisfied client",
    "p99 (s)": "p99, well-behaved (s)",
}


def dlpm_figure1(setting: Setting, quanta: Sequence[int] = FIGURE_1["quanta"]) -> Report:
    """Run VTC, LPM, this project's default, and two forms of DLPM with all quanta."""
    duration_s = FIGURE_1["duration_s"] * setting.scale
    cases = [
        Case(
            SimulationJob,
            trace=trace_of(FIGURE_1, Misbehaviour.MORE_REQUESTS, 1, seed, setting.scale),
            costs=_COSTS_1,
            options=ReplayOptions(seed=seed, until_s=duration_s),
            figures=partial(steady, begin_s=duration_s / 4, end_s=duration_s),
        )
        for seed in setting.seed_numbers
    ]
    summaries = setting.summaries(under(figure1_systems(quanta), cases))
    report = report_of(
        FIGURE_1,
        _COLUMNS,
        setting,
        summaries,
        costs=f"{_COSTS_1.name} ({_COSTS_1.origin})",
        flood=DLPM_WORKLOADS[FIGURE_1["workload"]].load.flood,
        duration_s=duration_s,
        max_bypass=DlpmOptions().max_bypass,
    )
    rows = {row.name: row for row in report.rows}
    return drawn(setting, report, (_front(rows, each) for each in ("Jain", "Jain actual")))


def figure1_systems(quanta: Sequence[int]) -> dict[str, SystemConfig]:
    """Return the systems of Figure 1 by the names of their rows."""
    forms = {
        f"{name}, Q^u {quantum:,}": SYSTEMS["dlpm"].with_options(
            {**options, "local.quantum": float(quantum)}
        )
        for name, options in _VARIANTS.items()
        for quantum in quanta
    }
    return {**{name: SYSTEMS[name] for name in _ENDS}, **forms}


def dlpm_figure7(setting: Setting, workers: Sequence[int] = FIGURE_7["workers"]) -> Report:
    """Run all cells and systems."""
    summaries: Summaries = {}
    for cell in FIGURE_7["cells"]:
        for number in workers:
            summaries |= _simulate(setting, cell, number)
    report = report_of(
        FIGURE_7,
        _COLUMNS,
        setting,
        summaries,
        costs=f"{_COSTS_7.name} ({_COSTS_7.origin}; batch bounded by memory)",
    )
    rows = {row.name: row for row in report.rows}
    return drawn(
        setting,
        report,
        (
            _by_workers(rows, cell, column, workers)
            for column in _DRAWN
            for cell in FIGURE_7["cells"]
        ),
        width=3.2,
        height=2.7,
        across=len(FIGURE_7["cells"]),
    )


def _simulate(setting: Setting, cell: Entry, workers: int) -> Summaries:
    """Return the summaries of each system in one cell, with latencies of the well-behaved."""
    end_s = cell["duration_s"] * setting.scale
    begin_s = end_s / 4
    cases = [
        Case(
            SimulationJob,
            trace=trace_of(cell, Misbehaviour(cell["misbehaviour"]), workers, seed, setting.scale),
            costs=_COSTS_7,
            options=ReplayOptions(workers=workers, seed=seed),
            figures=partial(steady, begin_s=begin_s, end_s=end_s),
        )
        for seed in setting.seed_numbers
    ]
    systems = {name: SYSTEMS[name] for name in FIGURE_7["systems"]}
    jobs = under(systems, cases, _label(cell, workers))
    # Of a program that is one short call, the time to first token.
    latency = "ttft_s" if cell["workload"] == "long-context-qa" else "interaction_latency_s"
    return {
        name: [{**each, "latency_s": each["groups"]["well-behaved"][latency]} for each in of_seeds]
        for name, of_seeds in simulate_with_entitlement(setting, jobs, begin_s, end_s).items()
    }


def trace_of(
    cell: Entry, misbehaviour: Misbehaviour, workers: int, seed: int, scale: float = 1.0
) -> Trace:
    """Return the requests of one cell, or of Figure 1."""
    load = replace(
        DLPM_WORKLOADS[cell["workload"]].load,
        programs_per_s=cell["programs_per_s"],
        workers=workers,
        duration_s=cell["duration_s"] * scale,
    )
    return generate_dlpm(cell["workload"], misbehaviour, seed, load=load)


def _label(cell: Entry, workers: int) -> str:
    return f"{cell['workload']} {cell['misbehaviour']} D={workers} "


def _front(rows: Mapping[str, ReportRow], column: str) -> PlotPanel:
    """Return the front by one of Jain's indices, a line for each form of DLPM."""
    lines = []
    for number, variant in enumerate((*_VARIANTS, *_ENDS)):
        own = {
            name: row.measured
            for name, row in rows.items()
            if name == variant or name.startswith(f"{variant}, Q^u")
        }
        lines.append(
            PlotLine(
                variant,
                [each["tok/s"].value for each in own.values()],
                [each[column].value for each in own.values()],
                {"color": color(number), "marker": "o"},
                labels=[name.rpartition(" ")[2] for name in own if "," in name],
            )
        )
    what = "cached tokens count" if column == "Jain" else "actual service"
    return PlotPanel(what, "throughput (tokens/s)", "Jain's index", lines, from_zero=False)


def _by_workers(
    rows: Mapping[str, ReportRow], cell: Entry, column: str, workers: Sequence[int]
) -> PlotPanel:
    """Return a line for each system in a cell."""
    lines = []
    for number, name in enumerate(FIGURE_7["systems"]):
        seen = [rows[_label(cell, each) + name].measured[column] for each in workers]
        lines.append(
            PlotLine(
                name,
                list(workers),
                [each.value for each in seen],
                {"color": color(number), "marker": "o"},
                spread=[(each.least, each.greatest) for each in seen],
            )
        )
    return PlotPanel(
        f"{cell['workload']} {cell['misbehaviour']}",
        "workers",
        _DRAWN[column],
        lines,
        x_ticks=workers,
        log_y=column == "p99 (s)",
    )
