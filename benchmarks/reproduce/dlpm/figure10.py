"""Figure 10 of the DLPM paper: throughput and Jain's index against the worker quantum Q^w.

The workload is trees of three branches on four workers, with and without a client of ten times
longer questions. The paper's Q^w goes from 2,000 to 40,000, here further: `d2lpm` uses 20 times the
mean prompt. The rate is chosen: three clients request about three times what four workers can do,
and the run stops with the arrivals. Both figures are of the last three quarters, in which all
clients wait nearly all the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairserve.benchmarks.reproduce.charts import Chart, Line, draw_charts, line
from fairserve.benchmarks.reproduce.claims import at_least, less_by_median
from fairserve.benchmarks.reproduce.dlpm.stopped import (
    HIT_RATE,
    JAIN,
    JAIN_ACTUAL,
    TOKENS_PER_S,
    stopped_jobs,
)
from fairserve.benchmarks.reproduce.dlpm.systems import (
    COSTS,
    OURS,
    OURS_TEXT,
    SEVERAL_WORKERS,
    server_text,
    system,
)
from fairserve.benchmarks.reproduce.dlpm.trends import rises
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row, rows_of
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.job import Job
from fairserve.engine.simulated.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    Misbehaviour,
    generate_dlpm,
)
from fairserve.engine.simulated.traces.model import Trace

WORKLOAD = "tree-of-thoughts-3"
WORKERS = 4
TREES_PER_S = 0.05
"""Trees per second of a client, for each worker."""
DURATION_S = 100.0
QUANTA = (2_000, 5_000, 10_000, 20_000, 40_000, 100_000, 400_000)
PAPER_LAST = 40_000
"""The paper's largest Q^w."""
OTHERS = tuple(name for name in SEVERAL_WORKERS if name != "d2lpm")
KINDS = {"one misbehaving": Misbehaviour.LONGER_PREFIX, "all well-behaved": Misbehaviour.NONE}
MISBEHAVING, WELL_BEHAVED = KINDS
ABOUT_ONE = 0.97
LEVEL = 0.03
_PUBLISHED = {2_000: 0.855, 40_000: 0.83}
"""Jain's index by Q^w, with a misbehaving client."""

BUSY = Column("busy", lambda s: s["busy_share"], 3)
COLUMNS = (TOKENS_PER_S, JAIN, JAIN_ACTUAL, HIT_RATE, BUSY)


def trace_of(kind: str, seed: int, scale: float) -> Trace:
    """Return the trees of one seed."""
    load = replace(
        DLPM_WORKLOADS[WORKLOAD].load,
        programs_per_s=TREES_PER_S,
        workers=WORKERS,
        duration_s=DURATION_S * scale,
    )
    return generate_dlpm(WORKLOAD, KINDS[kind], seed, load=load)


def dlpm_figure10(setting: Setting, quanta: Sequence[int] = QUANTA) -> Report:
    """Run D2LPM with all quanta, and the other systems."""
    duration_s = DURATION_S * setting.scale
    jobs: dict[str, list[Job]] = {}
    for kind in KINDS:
        traces = [trace_of(kind, seed, setting.scale) for seed in range(setting.seeds)]
        systems = {name: system(name) for name in OTHERS}
        for quantum in quanta:
            options = {"router.quantum": float(quantum)}
            systems[_with(quantum)] = system("d2lpm").with_options(options)
        for name, config in systems.items():
            title = f"Figure 10: {kind}, {name}"
            jobs[row_name(kind, name)] = stopped_jobs(
                title, traces, config, duration_s, workers=WORKERS
            )
    published = {row_name(MISBEHAVING, q): {"Jain": jain} for q, jain in _PUBLISHED.items()}
    rows = rows_of(COLUMNS, setting.summaries(jobs), published)
    plots = () if setting.plots is None else (_draw(setting.plots, rows, quanta),)
    return Report(
        "dlpm-figure10",
        "D2LPM, throughput and fairness with many quanta Q^w",
        f"{server_text(COSTS, WORKERS)}. Three clients with trees of 3 branches, of which one has "
        f"questions 10 times as long, or none; {TREES_PER_S * WORKERS:g} trees/s of each (chosen), "
        f"stopped after {duration_s:g} s, figures of the last three quarters. {OURS_TEXT} "
        f"Medians of {setting.seeds} seeds.",
        COLUMNS,
        list(rows.values()),
        claims(rows, quanta),
        plots,
    )


def _with(quantum: int) -> str:
    return f"Q^w {quantum:,}"


def row_name(kind: str, what: str | int) -> str:
    """Return the name of the row for a kind of clients and a system, or a quantum of D2LPM."""
    return f"{kind}: {_with(what) if isinstance(what, int) else what}"


def claims(rows: Mapping[str, Row], quanta: Sequence[int]) -> list[Check]:
    """Check the paper's claims, and those for this project's default."""
    checks = []
    for kind in KINDS:
        own = [rows[row_name(kind, quantum)] for quantum in quanta]
        paper = [row for q, row in zip(quanta, own, strict=True) if q <= PAPER_LAST]
        last = paper[-1]
        claim = f"{kind}: a greater Q^w raises throughput, up to {PAPER_LAST:,}"
        checks.append(rises(claim, paper, "tok/s"))
        beyond = [row.measured["tok/s"].value / last.measured["tok/s"].value - 1 for row in own]
        beyond = beyond[len(paper) :]
        claim = f"{kind}: beyond that it stays within {LEVEL:.0%}"
        seen = ", ".join(f"{each:+.1%}" for each in beyond) or "not measured"
        checks.append(Check(claim, all(abs(each) <= LEVEL for each in beyond), seen))
        for name in OTHERS:
            if name != OURS:
                claim = f"throughput is below that of D2LPM with Q^w {PAPER_LAST:,}"
                checks.append(less_by_median(claim, rows[row_name(kind, name)], last, "tok/s"))
        ours = rows[row_name(kind, OURS)]
        near = (1 - LEVEL) * last.measured["tok/s"].value
        claim = f"throughput is within {LEVEL:.0%} of that of D2LPM there, or above"
        value = ours.measured["tok/s"].value
        checks.append(Check(f"{ours.name}: {claim}", value >= near, f"{value:,.0f}"))
    wrong = [rows[row_name(MISBEHAVING, q)] for q in quanta if q <= PAPER_LAST]
    claim = "one misbehaving: a greater Q^w lowers Jain's index a little, by less than 0.1"
    first, last_jain = (row.measured["Jain"].value for row in (wrong[0], wrong[-1]))
    seen = f"{first:.3f} to {last_jain:.3f}, published 0.855 to 0.830"
    checks.append(Check(claim, 0 < first - last_jain < 0.1, seen))
    least = min(
        (rows[row_name(WELL_BEHAVED, q)] for q in quanta if q <= PAPER_LAST),
        key=lambda r: r.measured["Jain"].value,
    )
    claim = f"Jain's index of well-behaved clients is about 1, at least {ABOUT_ONE:g}"
    checks.append(at_least(claim, least, "Jain", ABOUT_ONE, 3))
    return checks


def _draw(folder: Path, rows: Mapping[str, Row], quanta: Sequence[int]) -> str:
    """Draw a chart per kind: throughput of all, and Jain's index of D2LPM dashed."""
    charts = []
    for kind in KINDS:
        own = [(float(quantum), rows[row_name(kind, quantum)]) for quantum in quanta]
        levels = {
            name: (rows[row_name(kind, name)].measured["tok/s"].value, number)
            for number, name in enumerate(OTHERS, start=1)
        }
        jain = [(quantum, row.measured["Jain"]) for quantum, row in own]
        charts.append(
            Chart(
                f"{kind}, D = {WORKERS}",
                "Q^w (tokens)",
                "throughput (tokens/s)",
                [line("d2lpm", own, "tok/s", 0)],
                levels,
                [Line("Jain's index of d2lpm (right)", jain, 7, dashed=True)],
                "Jain's index",
                (0.7, 1.01),
                log_x=True,
                from_zero=False,
            )
        )
    return draw_charts(folder / "dlpm-figure10.png", charts)
