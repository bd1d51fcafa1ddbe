"""Figure 1 of the DLPM paper: throughput against fairness of one worker, for many quanta Q^u.

The paper names neither workload nor rates nor values of Q^u. Here the workload is questions on long
documents, of which one worker caches six; one client asks four times as many as each of the two
others (S1). The load is about six times what the worker can do without hits, and the run stops with
the arrivals, so all clients wait all the time, and both axes cover the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairserve.benchmarks.reproduce.charts import ChartLine, ReportChart, draw_charts
from fairserve.benchmarks.reproduce.claims import at_least
from fairserve.benchmarks.reproduce.dlpm.trends import not_dominated, rises
from fairserve.benchmarks.reproduce.report import (
    Check,
    Report,
    ReportColumn,
    ReportRow,
    ReportSpread,
    rows_of,
)
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.benchmarks.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    Misbehaviour,
    generate_dlpm,
)
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

COSTS = replace(COST_MODELS["a10g-llama3.2-3b"], max_running=4096)
"""Llama-3.2-3B; the batch is bounded by memory alone, like the paper's engine."""
OURS = "fairserve"
"""Name of this project's default."""
PUBLISHED = "dlpm, published"
"""Algorithm 1 exactly as published, without this project's additions for calls that do not fit."""
WORKLOAD = "long-context-qa"
DURATION_S = 600.0
QUESTIONS_PER_S = 0.25
"""Questions per second of a well-behaved client."""
QUANTA = (1_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000)
VARIANTS = ("dlpm", PUBLISHED)
ENDS = ("vtc", "lpm", OURS)
NEAR_FAIREST = 0.05
NEAR_FASTEST = 0.9

COLUMNS = (
    ReportColumn("tok/s", lambda s: s["steady"]["tokens_per_s"]),
    ReportColumn("Jain", lambda s: s["steady"]["jain_index"], 3),
    ReportColumn("Jain actual", lambda s: s["steady"]["jain_index_extend"], 3),
    ReportColumn("hit rate", lambda s: s["prefix_hit_rate"], 3),
)
_AXES = ("tok/s", "Jain")


def dlpm_figure1(setting: Setting, quanta: Sequence[int] = QUANTA) -> Report:
    """Run VTC, LPM, this project's default, and two forms of DLPM with all quanta."""
    duration_s = DURATION_S * setting.scale
    workload = DLPM_WORKLOADS[WORKLOAD]
    load = replace(workload.load, programs_per_s=QUESTIONS_PER_S, duration_s=duration_s)
    traces = [
        generate_dlpm(WORKLOAD, Misbehaviour.MORE_REQUESTS, seed, load=load)
        for seed in range(setting.seeds)
    ]
    systems = {name: system(name) for name in ENDS}
    for variant in VARIANTS:
        for quantum in quanta:
            options = {"local.quantum": float(quantum)}
            systems[row_name(variant, quantum)] = system(variant).with_options(options)
    figures = partial(steady, begin_s=duration_s / 4, end_s=duration_s)
    jobs = {
        name: [
            SimulationJob(
                f"Figure 1: {name}",
                trace,
                config,
                COSTS,
                ReplayOptions(seed=seed, until_s=duration_s),
                figures=figures,
            )
            for seed, trace in enumerate(traces)
        ]
        for name, config in systems.items()
    }
    rows = rows_of(COLUMNS, setting.summaries(jobs))
    plots = () if setting.plots is None else (_draw(setting.plots, rows, quanta),)
    return Report(
        "dlpm-figure1",
        "DLPM, throughput against fairness with many quanta Q^u",
        f"Cost model {COSTS.name} ({COSTS.origin}), one worker. "
        "Questions on documents of 21,449 tokens, three clients of which one "
        f"asks {workload.load.flood:g} times as many (S1), {QUESTIONS_PER_S:g}/s of each other one "
        f"(chosen); stopped after {duration_s:g} s of arrivals, figures of the last three quarters. "
        "Jain: of service with cached tokens, the paper's metric; actual: by the extend cost, which is "
        f"what DLPM shares out. '{PUBLISHED}' is Algorithm 1 to the letter; 'dlpm', as this project "
        f"registers it, stops at a call that did not fit {DlpmOptions().max_bypass} times, and refills "
        f"the others when those in credit do not fit. {OURS} is this project's default. Medians of "
        f"{setting.seeds} seeds.",
        COLUMNS,
        list(rows.values()),
        claims(rows, quanta),
        plots,
    )


def system(name: str) -> SystemConfig:
    """Return a registered system, or :data:`PUBLISHED`."""
    if name == PUBLISHED:
        return SYSTEMS["dlpm"].with_options(
            {"local.max_bypass": 0, "local.refill_when_stuck": False}
        )
    return SYSTEMS[name]


def row_name(variant: str, quantum: int) -> str:
    """Return the name of the row for a form of DLPM and a quantum."""
    return f"{variant}, Q^u {quantum:,}"


def claims(rows: Mapping[str, ReportRow], quanta: Sequence[int]) -> list[Check]:
    """Check the paper's claims for both forms of DLPM and those for this project's default."""
    vtc, lpm = rows["vtc"], rows["lpm"]
    checks = []
    points: dict[str, ReportRow] = {}
    for variant in VARIANTS:
        own = {(name := row_name(variant, q)): rows[name] for q in quanta}
        points |= own
        in_order = list(own.values())
        checks += [
            rises(f"{variant}: a greater Q^u raises throughput", in_order, "tok/s"),
            rises(f"{variant}: a greater Q^u lowers Jain's index", in_order, "Jain", falls=True),
            not_dominated(
                f"{variant}: no point is dominated by VTC or LPM", own, (vtc, lpm), _AXES
            ),
        ]
        for index in ("Jain", "Jain actual"):
            fairest = _best(in_order, index)
            near = vtc.measured[index].value - NEAR_FAIREST
            claim = f"its fairest point is within {NEAR_FAIREST:g} of VTC's, {index} (least seed)"
            checks.append(at_least(claim, fairest, index, near, 3))
        fastest = _best(in_order, "tok/s")
        near = NEAR_FASTEST * lpm.measured["tok/s"].value
        claim = f"its fastest point has {NEAR_FASTEST:.0%} of LPM's throughput (least seed)"
        checks.append(at_least(claim, fastest, "tok/s", near))
    others = [*points.values(), vtc, lpm]
    claim = f"{OURS} is dominated by no point of the others"
    checks.append(not_dominated(claim, {OURS: rows[OURS]}, others, _AXES))
    return checks


def _best(rows: Sequence[ReportRow], column: str) -> ReportRow:
    return max(rows, key=lambda row: row.measured[column].value)


def _draw(folder: Path, rows: Mapping[str, ReportRow], quanta: Sequence[int]) -> str:
    """Draw the front, once for each of Jain's indices."""
    charts = []
    for column in ("Jain", "Jain actual"):
        lines = [
            ChartLine(
                f"{variant}, by Q^u",
                [_point(rows[row_name(variant, quantum)], column) for quantum in quanta],
                number,
                labels=[_short(quantum) for quantum in quanta],
                dashed=variant != PUBLISHED,
            )
            for number, variant in enumerate(VARIANTS)
        ]
        lines += [
            ChartLine(name, [_point(rows[name], column)], len(VARIANTS) + number)
            for number, name in enumerate(ENDS)
        ]
        what = "cached tokens count" if column == "Jain" else "actual service"
        charts.append(
            ReportChart(what, "throughput (tokens/s)", "Jain's index", lines, from_zero=False)
        )
    return draw_charts(folder / "dlpm-figure1.png", charts)


def _point(row: ReportRow, column: str) -> tuple[float, ReportSpread]:
    return row.measured["tok/s"].value, row.measured[column]


def _short(quantum: int) -> str:
    return f"{quantum // 1000}k" if quantum < 1_000_000 else f"{quantum // 1_000_000}M"
