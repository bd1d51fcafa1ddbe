"""``memory``: agents whose contexts together exceed the KV caches.

Sessions of agents (:mod:`fairserve.benchmarks.traces.generate.agent_sessions`) begin within half a
minute. A cell is their working set, contexts over KV capacity, on one to four workers that keep blocks
as vLLM does. Recorded agents are further cells, one of their sessions begins every two seconds.

Where all contexts fit, the default must do what it does without residents; beyond, at least twice as
much, and nearly as much as with the best fixed number of open runs, which is found by search for each
cell: no system knows it, and tenants are nothing to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, median
from typing import Any

from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.setting import Case, Setting, Summaries, delayed, under
from fairserve.benchmarks.reproduce.statements import Statement
from fairserve.benchmarks.reproduce.study import Entry, columns_of, read_study, report_of
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.benchmarks.traces.generate.agent_sessions import AgentSessions
from fairserve.engine.simulated.cost_model import COST_MODELS, CostModel
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.registry import SYSTEMS

_STUDY = read_study(__file__, "study.toml")
_COLUMNS = columns_of(_STUDY["columns"])
_ENTRY: Entry = next(entry for entry in _STUDY["report"] if entry["name"] == "memory")
COSTS = replace(COST_MODELS["a100-llama3-8b"], max_running=256)
"""Cost model of the reports about this project's default."""
OURS = "fairserve"
WITHOUT = f"{OURS}, no memory for runs"
FIXED = "best fixed number of open runs"
_OF_THOSE_THAT_FIT = (0.6, 0.7, 0.8, 0.9, 1.0, 1.15)
"""Numbers of open runs that are tried, relative to the number of mean contexts that the caches hold."""
_PAGED = replace(COSTS, loop="paged")
_FITS, _BEYOND = 0.5, 2.0
RECORDED = (
    "claude_code_sessions_A.jsonl.gz",
    "lmcache_miniswe.jsonl.gz",
    "autocoderover_run_1.jsonl.gz",
)
_RECORDED_WORKING_SET = 2.2
_SESSIONS, _EVERY_S, _LONGEST_TOKENS, _LONGEST_PAUSE_S = 48, 2.0, 130_000, 30.0
"""Number of sessions of a recorded file, and the time between two beginnings. Sessions with larger
prompts are left out, and the rest of a longer pause, which was a person's."""


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """A workload, on some workers."""

    name: str
    working_set: float
    """Contexts over KV capacity."""
    workers: int
    costs: tuple[CostModel, ...]
    """A cost model for each seed; of recorded files seeds differ by it."""
    traces: tuple[Trace, ...]
    """A trace for each seed."""

    @property
    def open_runs(self) -> list[int]:
        """Return the numbers of open runs that are tried."""
        fit = len(self.traces[0]) / self.working_set
        return sorted({max(1, round(part * fit)) for part in _OF_THOSE_THAT_FIT})

    def label(self, system: str) -> str:
        """Return the name of a row."""
        return f"{self.name}, D={self.workers} {system}"


def generated_cells(
    setting: Setting, working_sets: Sequence[float], workers: Sequence[int]
) -> list[MemoryCell]:
    """Return the cells with generated sessions."""
    costs = replace(_PAGED, kv_capacity_tokens=round(_PAGED.kv_capacity_tokens * setting.scale))
    sessions, cells = AgentSessions(), []
    for working_set, number in product(working_sets, workers):
        tokens = working_set * number * costs.kv_capacity_tokens
        count = max(1, round(tokens / sessions.mean_tokens))
        traces = tuple(sessions.trace(count, seed) for seed in setting.seed_numbers)
        of_seeds = (costs,) * setting.seeds
        cells.append(MemoryCell(f"{working_set:g} x KV", working_set, number, of_seeds, traces))
    return cells


def recorded_cells(setting: Setting) -> list[MemoryCell]:
    """Return a cell for each recorded file. Raises TraceError if one is missing."""
    return [recorded_cell(setting, name) for name in RECORDED]


def recorded_cell(
    setting: Setting, name: str, working_set: float = _RECORDED_WORKING_SET, workers: int = 1
) -> MemoryCell:
    """Return the cell of a recorded file. Raises TraceError if it is missing."""
    trace = setting.recorded(name)
    short = [
        run
        for run in trace.interactions
        if max(call.prompt_tokens for call in run.calls) <= _LONGEST_TOKENS
    ]
    chosen = short[:: max(1, len(short) // _SESSIONS)][:_SESSIONS]
    runs = [
        replace(
            run,
            tenant=f"tenant-{number % 4}",
            app="agent",
            user=f"user-{number % 8}",
            arrival_s=_EVERY_S * number,
            calls=tuple(
                replace(call, gap_s=min(call.gap_s, _LONGEST_PAUSE_S)) for call in run.calls
            ),
        )
        for number, run in enumerate(chosen)
    ]
    contexts = sum(mean(call.prompt_tokens for call in run.calls) for run in runs)
    costs = replace(_PAGED, kv_capacity_tokens=round(contexts / working_set / workers))
    traces = (trace.with_interactions(runs),) * setting.seeds
    of_seeds = tuple(delayed(costs, seed) for seed in setting.seed_numbers)
    title = f"{name.split('.')[0]}, {working_set:g} x KV"
    return MemoryCell(title, working_set, workers, of_seeds, traces)


def memory(setting: Setting) -> Report:
    """Return a row for each system in each cell."""
    generated = generated_cells(setting, _ENTRY["working_sets"], _ENTRY["workers"])
    return memory_of(setting, generated + recorded_cells(setting))


def memory_of(setting: Setting, cells: Sequence[MemoryCell]) -> Report:
    """Return a row for each system in some cells, of fixed numbers of open runs the best one."""
    systems = {name: SYSTEMS[name] for name in ("cache-aware", "vtc", "d2lpm")}
    systems[WITHOUT] = SYSTEMS[OURS].with_options({"resident_share": None})
    systems[OURS] = SYSTEMS[OURS]
    runs: Summaries = {}
    for cell in cells:
        jobs = under(systems, _cases(setting, cell, None), cell.label(""))
        if cell.working_set > _BEYOND:
            for number in cell.open_runs:
                fixed = {f"{FIXED}: {number}": SYSTEMS["cache-aware"]}
                jobs |= under(fixed, _cases(setting, cell, number), cell.label(""))
        found = setting.summaries(jobs)
        tried = [label for label in found if label.startswith(cell.label(FIXED))]
        for label in sorted(
            tried, key=lambda label: median(each["tokens_per_s"] for each in found[label])
        )[:-1]:
            del found[label]
        runs |= found
    report = report_of(
        _ENTRY,
        _COLUMNS,
        setting,
        runs,
        costs=COSTS.name,
        kv_tokens=_PAGED.kv_capacity_tokens,
        sessions=AgentSessions(),
        most=_SESSIONS,
        longest_tokens=_LONGEST_TOKENS,
        longest_pause_s=_LONGEST_PAUSE_S,
        every_s=_EVERY_S,
        working_set=_RECORDED_WORKING_SET,
        numbers=len(_OF_THOSE_THAT_FIT),
    )
    rows = {row.name: row for row in report.rows}
    made = (each.check(rows) for cell in cells for each in statements(cell, list(rows)))
    return replace(report, checks=[check for check in made if check is not None])


def _cases(setting: Setting, cell: MemoryCell, open_runs: int | None) -> list[Case]:
    return [
        Case(
            SimulationJob,
            trace=trace,
            costs=costs,
            options=ReplayOptions(workers=cell.workers, seed=seed, open_runs=open_runs),
            figures=_figures,
        )
        for seed, costs, trace in zip(setting.seed_numbers, cell.costs, cell.traces, strict=True)
    ]


def _figures(trace: Trace, result: ReplayResult) -> dict[str, Any]:
    """Return tokens per second, and the waits of first and of later calls of the runs."""
    begun: list[float] = []
    begin: list[float] = []
    seen: set[str] = set()
    opened_s = {run.interaction_id: run.arrival_s for run in trace.interactions}
    done = [call for call in result.calls if call.outcome == "completed"]
    for call in sorted(done, key=lambda call: call.arrival_s):
        assert call.first_token_s is not None, "the call is completed"
        if call.interaction_id in seen:
            begun.append(call.first_token_s - call.arrival_s)
        else:
            begin.append(call.first_token_s - opened_s[call.interaction_id])
        seen.add(call.interaction_id)
    tokens = sum(call.usage.prompt_tokens + call.usage.output_tokens for call in done)
    return {
        "tokens_per_s": tokens / max(call.end_s for call in done),
        "begun_p99_s": sorted(begun)[int(0.99 * len(begun))],
        "begin_p50_s": median(begin),
        "begin_max_s": max(begin),
    }


def statements(cell: MemoryCell, rows: Sequence[str]) -> Iterator[Statement]:
    """Yield what must hold in a cell: nothing is lost where all fits, much is gained elsewhere."""

    def at_least(part: float, than: str, claim: str) -> Statement:
        claim = f"{cell.label('').rstrip()}: {part:g} {claim}"
        return Statement(
            kind="ratio between",
            claim=claim,
            column="tok/s",
            row=cell.label(OURS),
            than=than,
            bounds=[part, math.inf],
        )

    if cell.working_set <= _FITS:
        yield at_least(0.99, cell.label(WITHOUT), "times the throughput without memory for runs")
    elif cell.working_set > _BEYOND:
        yield at_least(2.0, cell.label(WITHOUT), "times the throughput without memory for runs")
        [best] = [label for label in rows if label.startswith(cell.label(FIXED))]
        claim = "of the throughput with the best fixed number of open runs"
        yield at_least(0.95, best, claim)
    yield Statement(
        kind="by median at most",
        claim=f"{cell.label('').rstrip()}: p99 TTFT of begun runs at most 10 s",
        column="p99 TTFT of begun runs (s)",
        row=cell.label(OURS),
        bounds=[10.0],
    )
