"""Figure 7 of the DLPM paper: throughput, fairness and latency of five systems on up to eight workers.

There are three programs, each with one client that sends more (S1) or has longer prefixes (S2). The
paper gives no rates; here they exceed the capacity several times, for up to a minute, and grow with
the workers. Throughput is over the whole run; fairness is measured while requests arrive, since
afterwards clients whose last programs drain cannot use their share. Latency is that of the
well-behaved clients' programs, for questions on documents their time to first token, as in the
paper. Jain's index is over service with cached tokens included (its footnote 5). If well-behaved
clients request less than their share, as with trees, that index is not meaningful under any system,
so the claims are about the least satisfied client
(:mod:`fairserve.benchmarks.reproduce.entitlement`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from fairserve.benchmarks.reproduce.charts import ReportChart, draw_charts, line
from fairserve.benchmarks.reproduce.entitlement import Summary, simulate_with_entitlement
from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, ReportRow, measure
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
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.registry import SYSTEMS

COSTS = replace(COST_MODELS["a100-llama3-8b"], max_running=4096)
"""Cost model; the batch is bounded by memory alone, like the paper's engine."""
WORKERS = (1, 2, 4, 8)
PAPER = ("vtc", "rr-lpm", "preble", "d2lpm")
EXCEPTION = ("long-context-qa", "S2", 8)
"""Cell in which the paper's Preble has more throughput than its D2LPM."""
OURS = "fairserve"
DURATION_S = {"long-context-qa": 60.0, "tree-of-thoughts": 24.0, "judge": 40.0}
RATES = {
    ("long-context-qa", "S1"): 1.0,
    ("long-context-qa", "S2"): 2.0,
    ("tree-of-thoughts", "S1"): 1.0,
    ("tree-of-thoughts", "S2"): 2.0,
    ("judge", "S1"): 2.0,
    ("judge", "S2"): 2.0,
}
"""Programs per second of a well-behaved client for each worker."""

Cell = tuple[str, str, int]


def trace_of(
    workload: str, misbehaviour: str, workers: int, seed: int, scale: float = 1.0
) -> Trace:
    """Return the requests of one cell."""
    load = replace(
        DLPM_WORKLOADS[workload].load,
        programs_per_s=RATES[workload, misbehaviour],
        workers=workers,
        duration_s=DURATION_S[workload] * scale,
    )
    return generate_dlpm(workload, Misbehaviour(misbehaviour), seed, load=load)


def _good(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    good: Mapping[str, Any] = summary["groups"]["well-behaved"]
    return good


COLUMNS = (
    ReportColumn("tok/s", lambda s: s["throughput_tokens_per_s"]["total"]),
    ReportColumn("Jain", lambda s: s["steady"]["jain_index"], 3),
    ReportColumn("satisfied", lambda s: s["satisfied_min"], 3),
    ReportColumn("p50 (s)", lambda s: _latency(s)["p50"], 1),
    ReportColumn("p99 (s)", lambda s: _latency(s)["p99"], 1),
    ReportColumn("hit rate", lambda s: s["prefix_hit_rate"], 3),
)


_DRAWN = {
    "tok/s": "tokens/s",
    "satisfied": "least satisfied client",
    "p99 (s)": "p99, well-behaved (s)",
}


def _latency(summary: Mapping[str, Any]) -> Mapping[str, float]:
    """Return latencies of well-behaved programs, or the TTFT if a program is one short call."""
    good = _good(summary)
    single = good["per_client"] and summary["workload"] == "long-context-qa"
    latency: Mapping[str, float] = good["ttft_s" if single else "interaction_latency_s"]
    return latency


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows by cell and system."""

    rows: Mapping[tuple[Cell, str], ReportRow]

    def ratios(self, column: str, system: str, other: str) -> dict[Cell, float]:
        """Return one system's value over another's by cell."""
        return {
            cell: _ratio(row.measured[column].value, self.rows[cell, other].measured[column].value)
            for (cell, name), row in self.rows.items()
            if name == system
        }


def _ratio(value: float, other: float) -> float:
    """Return the ratio of two figures that are not negative; 1 if both are 0."""
    if not other:
        return math.inf if value else 1.0
    return value / other


def dlpm_figure7(setting: Setting, workers: Sequence[int] = WORKERS) -> Report:
    """Run all cells and systems."""
    cells = [(*kind, number) for kind in RATES for number in workers]
    rows: dict[tuple[Cell, str], ReportRow] = {}
    for cell in cells:
        for name, of_seeds in _simulate(setting, cell).items():
            summaries = [{**summary, "workload": cell[0]} for summary in of_seeds]
            rows[cell, name] = ReportRow(_label(cell, name), measure(COLUMNS, summaries))
    plots = () if setting.plots is None else (_draw(setting.plots, rows, workers),)
    return Report(
        "dlpm-figure7",
        "DLPM, throughput, fairness and latency on one to eight workers",
        f"Cost model {COSTS.name} ({COSTS.origin}; batch bounded by memory); three clients, one of them "
        f"misbehaving; 24 to 60 s of arrivals, then to the last end; medians of {setting.seeds} seeds.",
        COLUMNS,
        list(rows.values()),
        claims(Cells(rows)),
        plots,
    )


def _simulate(setting: Setting, cell: Cell) -> dict[str, list[Summary]]:
    """Return the summaries of each system in one cell, one per seed."""
    workload, misbehaviour, number = cell
    duration_s = DURATION_S[workload] * setting.scale
    begin_s, end_s = duration_s / 4, duration_s
    traces = [
        trace_of(workload, misbehaviour, number, seed, setting.scale)
        for seed in setting.seed_numbers
    ]
    jobs = {
        name: [
            SimulationJob(
                _label(cell, name),
                trace,
                SYSTEMS[name],
                COSTS,
                ReplayOptions(workers=number, seed=seed),
                figures=partial(steady, begin_s=begin_s, end_s=end_s),
            )
            for seed, trace in zip(setting.seed_numbers, traces, strict=True)
        ]
        for name in (*PAPER, OURS)
    }
    return simulate_with_entitlement(setting, jobs, begin_s, end_s)


def _draw(folder: Path, rows: Mapping[tuple[Cell, str], ReportRow], workers: Sequence[int]) -> str:
    """Draw a row per figure, a column per workload and misbehaviour, a line per system."""
    charts = [
        ReportChart(
            f"{workload} {misbehaviour}",
            "workers",
            label,
            [
                line(
                    name,
                    [
                        (float(number), rows[(workload, misbehaviour, number), name])
                        for number in workers
                    ],
                    column,
                    color,
                )
                for color, name in enumerate((*PAPER, OURS))
            ],
            log_x=True,
            log_y=column == "p99 (s)",
        )
        for column, label in _DRAWN.items()
        for workload, misbehaviour in RATES
    ]
    path = folder / "dlpm-figure7.png"
    return draw_charts(path, charts, width=3.2, height=2.7, across=len(RATES))


def _label(cell: Cell, system: str) -> str:
    workload, misbehaviour, workers = cell
    return f"{workload} {misbehaviour} D={workers} {system}"


def claims(cells: Cells) -> list[Check]:
    """Check the paper's claims, and those for this project's default."""
    vtc = cells.ratios("tok/s", "d2lpm", "vtc")
    lpm = cells.ratios("tok/s", "d2lpm", "rr-lpm")
    checks = [
        _check("d2lpm's throughput is up to 2 times vtc's", max(vtc.values()) >= 2.0, vtc, max),
        _check("d2lpm's throughput is never below vtc's", min(vtc.values()) >= 0.99, vtc, min),
        _check(
            "d2lpm's throughput is up to 1.8 times rr-lpm's", max(lpm.values()) >= 1.8, lpm, max
        ),
    ]
    for other in ("preble", "rr-lpm"):
        slower = cells.ratios("p99 (s)", other, "d2lpm")
        mean = geometric_mean(slower.values())
        claim = f"well-behaved clients wait longer under {other} than under d2lpm (p99)"
        checks.append(_check(f"{claim}, mean {mean:.2f} times", mean > 1.0, slower, max))
        fairer = cells.ratios("satisfied", "d2lpm", other)
        claim = f"d2lpm's least satisfied client has no less than that of {other}"
        checks.append(_check(claim, min(fairer.values()) >= 0.99, fairer, min))
    if (EXCEPTION, "preble") in cells.rows:
        ratio = cells.ratios("tok/s", "preble", "d2lpm")[EXCEPTION]
        claim = "preble's throughput is above d2lpm's, the paper's exception"
        checks.append(_check(claim, ratio > 1.0, {EXCEPTION: ratio}, max))
    for name in PAPER:
        both = [
            cell
            for (cell, system), row in cells.rows.items()
            if system == name and _dominates(row, cells.rows[cell, OURS])
        ]
        claim = f"{name} nowhere beats {OURS} on fairness and throughput at once"
        checks.append(Check(claim, not both, "; ".join(map(str, both)) or "in no cell"))
    return checks


def _dominates(row: ReportRow, ours: ReportRow) -> bool:
    """Return whether a row is better in both by more than the spread over seeds."""
    throughput, fairness = row.measured["tok/s"], row.measured["satisfied"]
    return (
        throughput.least > 1.005 * ours.measured["tok/s"].greatest
        and fairness.least > 0.005 + ours.measured["satisfied"].greatest
    )


def _check(
    claim: str,
    holds: bool,
    ratios: Mapping[Cell, float],
    extreme: Callable[[Sequence[float]], float],
) -> Check:
    value = extreme(list(ratios.values()))
    [cell, *_] = [cell for cell, ratio in ratios.items() if ratio == value]
    return Check(claim, holds, f"{value:.2f} times in {cell[0]} {cell[1]}, D = {cell[2]}")
