"""``headline``: the default beside other systems in eight cells, one page.

Who gets least is judged by the smallest part of the runs of a well-behaved client (or app, where there
are hundreds of users) that end in time. Throughput is compared only among systems that satisfy the least
satisfied alike, within ``EQUAL``: more work for others is no merit where somebody is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fairserve.benchmarks.plots import PlotLine, PlotPanel, color
from fairserve.benchmarks.reproduce.default.cells import GREEDY, WorkloadCell, headline_cells
from fairserve.benchmarks.reproduce.report import Check, Report, ReportRow, ratio
from fairserve.benchmarks.reproduce.setting import Case, Setting, Summaries, under
from fairserve.benchmarks.reproduce.study import Entry, columns_of, drawn, read_study, report_of
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

OURS = "fairserve"
STUDY = read_study(__file__, "study.toml")
REPORTS: Mapping[str, Entry] = {entry["name"]: entry for entry in STUDY["report"]}
"""Entries of the file by the name of their report."""
COLUMNS = columns_of(STUDY["columns"])
OTHERS: Sequence[str] = REPORTS["headline"]["others"]
Options = Mapping[str, Any]
TUNED: Mapping[str, Options] = STUDY["tuned"]
"""Best settings of other systems (:mod:`fairserve.benchmarks.reproduce.default.tuning`)."""
EQUAL = 0.1
"""Difference of the least satisfied part from which systems are no longer alike."""
_WARM_UP = 0.25
"""Part of the arrivals before throughput is measured."""
_WORK, _TAIL = 0.97, 1.2
"""Parts of the best throughput and tail that the default must reach among those alike."""

_THROUGHPUT, _LEAST, _LAST = "tok/s in time", "least satisfied", "tail (s)"


def headline(setting: Setting) -> Report:
    """Return a row for each system in each cell. Raises TraceError without the recorded traces."""
    return headline_of(setting, headline_cells(setting))


def simulate(
    setting: Setting, cells: Mapping[str, WorkloadCell], systems: Mapping[str, SystemConfig]
) -> Summaries:
    """Run some systems in some cells."""
    jobs: dict[str, list[SimulationJob]] = {}
    for cell, each in cells.items():
        cases = [
            Case(
                SimulationJob,
                trace=trace,
                costs=costs,
                options=ReplayOptions(
                    workers=each.workers,
                    seed=seed,
                    first_token_timeout_s=each.timeout_s,
                    limits=each.limits,
                ),
                figures=partial(_figures, replace(each, traces=(), costs=())),
            )
            for seed, costs, trace in zip(
                setting.seed_numbers, each.costs, each.traces, strict=True
            )
        ]
        jobs |= under(systems, cases, f"{cell}: ")
    return setting.summaries(jobs)


def headline_of(setting: Setting, cells: Mapping[str, WorkloadCell]) -> Report:
    """Return a row for each system in some cells."""
    systems = {name: SYSTEMS[name].with_options(TUNED.get(name, {})) for name in (*OTHERS, OURS)}
    each = "; ".join(
        f"{name}: D={cell.workers}, {len(cell.traces[0]):,} runs, time-out {cell.timeout_s:g} s"
        for name, cell in cells.items()
    )
    runs = simulate(setting, cells, systems)
    report = report_of(REPORTS["headline"], COLUMNS, setting, runs, cells=each)
    rows = {row.name: row for row in report.rows}
    report = replace(report, checks=claims(rows, list(cells)))
    panels = (_panel(rows, cell) for cell in cells)
    return drawn(setting, report, panels, width=2.6, height=2.6, across=4)


def _figures(cell: WorkloadCell, trace: Trace, result: ReplayResult) -> dict[str, Any]:
    runs = {run.interaction_id: run for run in trace.interactions}
    good = {name for name, run in runs.items() if run.group not in GREEDY}
    complete = [run for run in result.runs if run.complete]
    late = {
        run.interaction_id
        for run in complete
        if run.end_s - run.start_s > cell.deadlines_s.get(run.interaction_id, math.inf)
    }
    timely = {run.interaction_id for run in complete} - late
    arrived: dict[str, int] = defaultdict(int)
    in_time: dict[str, int] = defaultdict(int)
    for name in good:
        arrived[cell.part(runs[name])] += 1
    for name in timely & good:
        in_time[cell.part(runs[name])] += 1
    waits = [
        (call.end_s if call.first_token_s is None else call.first_token_s) - call.arrival_s
        for call in result.calls
        if call.interaction_id in good
    ]
    lengths = [run.end_s - run.start_s for run in complete if run.interaction_id in good]
    end_s = min(cell.arrivals_s, max(run.end_s for run in result.runs))
    begin_s = 0.0 if math.isinf(cell.arrivals_s) else _WARM_UP * end_s
    compared = {
        run.interaction_id
        for run in complete
        if run.interaction_id in timely and begin_s < run.end_s <= end_s
    }
    tokens = sum(
        call.usage.prompt_tokens + call.usage.output_tokens
        for call in result.calls
        if call.interaction_id in compared
    )
    ttft_p99_s = float(np.quantile(waits, 0.99))
    run_p50_s, run_p99_s = np.quantile(lengths, (0.5, 0.99)) if lengths else (0.0, 0.0)
    return {
        "runs_per_s": len(compared) / (end_s - begin_s),
        "least_satisfied": min(in_time[part] / number for part, number in arrived.items()),
        "ttft_p99_s": ttft_p99_s,
        "tail_s": float(run_p99_s) if cell.deadlines_s else ttft_p99_s,
        "run_p50_s": float(run_p50_s),
        "run_p99_s": float(run_p99_s),
        "wasted_tokens": float(sum(run.wasted_tokens for run in result.runs)),
        "tokens_per_s": tokens / (end_s - begin_s),
    }


def claims(rows: Mapping[str, ReportRow], cells: Sequence[str]) -> list[Check]:
    """Check for each cell that no system is better, and that those alike do hardly more work."""
    checks = []
    for cell in cells:
        of_cell = {name: rows[f"{cell}: {name}"] for name in OTHERS}
        ours = rows[f"{cell}: {OURS}"]
        better = [name for name, row in of_cell.items() if _dominates(row, ours)]
        claim = f"{cell}: no system is better in throughput, satisfaction and tail"
        checks.append(Check(claim, not better, ", ".join(better) or "none"))
        alike = {
            name: row
            for name, row in of_cell.items()
            if _of(row, _LEAST) >= _of(ours, _LEAST) - EQUAL
        }
        best = max(alike, key=lambda name: _of(alike[name], _THROUGHPUT), default=OURS)
        part = ratio(_of(ours, _THROUGHPUT), _of({**alike, OURS: ours}[best], _THROUGHPUT))
        claim = f"{cell}: at least {_WORK:g} of the throughput of any that satisfies alike"
        checks.append(Check(claim, part >= _WORK, f"{part:.2f} of {best}'s"))
        best = min(alike, key=lambda name: _of(alike[name], _LAST), default=OURS)
        times = ratio(_of(ours, _LAST), _of({**alike, OURS: ours}[best], _LAST))
        claim = f"{cell}: at most {_TAIL:g} times the tail of any that satisfies alike"
        checks.append(Check(claim, times <= _TAIL, f"{times:.2f} times {best}'s"))
    return checks


def _of(row: ReportRow, column: str) -> float:
    return row.measured[column].value


def _dominates(row: ReportRow, ours: ReportRow) -> bool:
    """Return whether a row is at least as good in all three figures, and clearly better in one."""
    work, tail = (ratio(_of(row, column), _of(ours, column)) for column in (_THROUGHPUT, _LAST))
    least = _of(row, _LEAST) - _of(ours, _LEAST)
    if work < 0.99 or least < -0.01 or tail > 1.01:
        return False
    return work > 1 / _WORK or least > EQUAL or tail < 1 / _TAIL


def _panel(rows: Mapping[str, ReportRow], cell: str) -> PlotPanel:
    """Return a point for each system; the best place is the upper right corner."""
    work = {name: _of(rows[f"{cell}: {name}"], _THROUGHPUT) for name in (*OTHERS, OURS)}
    most = max(work.values()) or 1.0
    points = []
    for number, name in enumerate(work):
        style = {"marker": "osDv^<>p"[number % 8], "color": color(number), "markersize": 6}
        if name == OURS:
            style = {"marker": "*", "color": "black", "markersize": 14}
        least = _of(rows[f"{cell}: {name}"], _LEAST)
        points.append(PlotLine(name, [work[name] / most], [least], {"linestyle": "", **style}))
    x, y = "work done in time, of the best", "least satisfied client"
    return PlotPanel(cell, x, y, points, x_range=(-0.06, 1.08), y_range=(-0.06, 1.08))
