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

from fairserve.benchmarks.reproduce.default.cells import GREEDY, WorkloadCell, headline_cells
from fairserve.benchmarks.reproduce.default.costs import OURS
from fairserve.benchmarks.reproduce.default.headline_plot import draw_headline
from fairserve.benchmarks.reproduce.report import (
    Check,
    Report,
    ReportColumn,
    ReportRow,
    measure,
    ratio,
)
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

OTHERS = ("fcfs", "rpm-20", "vtc", "fs-wi", "cache-aware", "cache-aware-vtc", "d2lpm")
Options = Mapping[str, Any]
TUNED: Mapping[str, Options] = {
    "vtc": {"local.predict": "mean"},
    "cache-aware": {"router.balance_abs": 16},
    "cache-aware-vtc": {"router.balance_abs": 8},
    "d2lpm": {"local.quantum": 250, "router.quantum_prompts": 1600},
}
"""Best settings of other systems (:mod:`fairserve.benchmarks.reproduce.default.tuning`)."""
EQUAL = 0.1
"""Difference of the least satisfied part from which systems are no longer alike."""
_WARM_UP = 0.25
"""Part of the arrivals before throughput is measured."""
_WORK, _TAIL = 0.97, 1.2
"""Parts of the best throughput and tail that the default must reach among those alike."""

WORK = ReportColumn("tok/s in time", lambda s: s["tokens_per_s"])
LEAST = ReportColumn("least satisfied", lambda s: s["least_satisfied"], 3)
TAIL = ReportColumn("tail (s)", lambda s: s["tail_s"], 2)
COLUMNS = (
    WORK,
    LEAST,
    TAIL,
    ReportColumn("runs in time/s", lambda s: s["runs_per_s"], 3),
    ReportColumn("p99 TTFT (s)", lambda s: s["ttft_p99_s"], 2),
    ReportColumn("p50 run (s)", lambda s: s["run_p50_s"], 1),
    ReportColumn("p99 run (s)", lambda s: s["run_p99_s"], 1),
    ReportColumn("tokens wasted", lambda s: s["wasted_tokens"]),
)

Summaries = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""Figures by cell and system, one for each seed."""
Rows = Mapping[tuple[str, str], ReportRow]
"""Rows by cell and system."""


def headline(setting: Setting) -> Report:
    """Return a row for each system in each cell. Raises TraceError without the recorded traces."""
    return report_of(setting, headline_cells(setting))


def simulate(
    setting: Setting, cells: Mapping[str, WorkloadCell], systems: Mapping[str, SystemConfig]
) -> Summaries:
    """Run some systems in some cells."""
    jobs = {
        f"{cell}, {name}": [
            SimulationJob(
                f"{cell}, {name}",
                trace,
                system,
                costs,
                ReplayOptions(
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
        for cell, each in cells.items()
        for name, system in systems.items()
    }
    found = setting.summaries(jobs)
    return {(cell, name): found[f"{cell}, {name}"] for cell in cells for name in systems}


def report_of(setting: Setting, cells: Mapping[str, WorkloadCell]) -> Report:
    """Return a row for each system in some cells."""
    systems = {name: SYSTEMS[name].with_options(TUNED.get(name, {})) for name in (*OTHERS, OURS)}
    rows = {
        (cell, name): ReportRow(f"{cell}: {name}", measure(COLUMNS, of_seeds))
        for (cell, name), of_seeds in simulate(setting, cells, systems).items()
    }
    plots: list[str] = []
    if setting.plots is not None:
        plots = [draw_headline(setting.plots / "headline.png", rows).name]
    return Report(
        "headline",
        "the default beside other systems, in eight cells",
        _text(setting, cells),
        COLUMNS,
        list(rows.values()),
        claims(rows),
        plots,
    )


def _text(setting: Setting, cells: Mapping[str, WorkloadCell]) -> str:
    each = "; ".join(
        f"{name}: D={cell.workers}, {len(cell.traces[0]):,} runs, time-out {cell.timeout_s:g} s"
        for name, cell in cells.items()
    )
    return (
        "A client aborts a run when it has waited for a first token as long as its time-out; complete "
        "runs are in time. Throughput: of runs that end in time within the last three quarters of the "
        "arrivals; of agents, until all have ended. Least satisfied: the smallest part of the runs of a "
        "well-behaved client (agents: tenant; flood, tiny calls, crowd, half load: app) that are in "
        "time. TTFT is that of the well-behaved, an aborted call counts with its wait. Run times are of "
        "complete runs of the well-behaved. The tail is the p99 TTFT; of agents, in time within 3 times "
        "what a run takes alone, the p99 of their runs. Other systems have their best settings, by "
        f"`fairserve reproduce tuning`. {each}. Medians of {setting.seeds} seeds with least and "
        "greatest."
    )


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


def claims(rows: Rows) -> list[Check]:
    """Check for each cell that no system is better, and that those alike do hardly more work."""
    checks = []
    for cell in dict.fromkeys(cell for cell, _ in rows):
        of_cell = {name: row for (at, name), row in rows.items() if at == cell}
        ours = of_cell.pop(OURS)
        better = [name for name, row in of_cell.items() if _dominates(row, ours)]
        claim = f"{cell}: no system is better in throughput, satisfaction and tail"
        checks.append(Check(claim, not better, ", ".join(better) or "none"))
        alike = {
            name: row
            for name, row in of_cell.items()
            if _of(row, LEAST) >= _of(ours, LEAST) - EQUAL
        }
        best = max(alike, key=lambda name: _of(alike[name], WORK), default=OURS)
        part = ratio(_of(ours, WORK), _of({**alike, OURS: ours}[best], WORK))
        claim = f"{cell}: at least {_WORK:g} of the throughput of any that satisfies alike"
        checks.append(Check(claim, part >= _WORK, f"{part:.2f} of {best}'s"))
        best = min(alike, key=lambda name: _of(alike[name], TAIL), default=OURS)
        times = ratio(_of(ours, TAIL), _of({**alike, OURS: ours}[best], TAIL))
        claim = f"{cell}: at most {_TAIL:g} times the tail of any that satisfies alike"
        checks.append(Check(claim, times <= _TAIL, f"{times:.2f} times {best}'s"))
    return checks


def _of(row: ReportRow, column: ReportColumn) -> float:
    return row.measured[column.name].value


def _dominates(row: ReportRow, ours: ReportRow) -> bool:
    """Return whether a row is at least as good in all three figures, and clearly better in one."""
    work, tail = (ratio(_of(row, column), _of(ours, column)) for column in (WORK, TAIL))
    least = _of(row, LEAST) - _of(ours, LEAST)
    if work < 0.99 or least < -0.01 or tail > 1.01:
        return False
    return work > 1 / _WORK or least > EQUAL or tail < 1 / _TAIL
