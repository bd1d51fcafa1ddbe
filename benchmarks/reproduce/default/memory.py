"""``memory``: agents whose contexts together exceed the KV caches.

Sessions of agents (:mod:`fairserve.benchmarks.traces.generate.agent_sessions`) begin within half a
minute. A cell is their working set, contexts over KV capacity, on one to four workers that keep blocks
as vLLM does. Recorded agents are further cells, one of their sessions begins every two seconds.

Where all contexts fit, the default must do what it does without residents; beyond, at least twice as
much, and nearly as much as with the best fixed number of open runs, which is found by search for each
cell: no system knows it, and tenants are nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, median
from typing import Any

from fairserve.benchmarks.reproduce.default.costs import COSTS, OURS
from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, ReportRow, measure
from fairserve.benchmarks.reproduce.setting import Setting, delayed
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.benchmarks.traces.generate.agent_sessions import AgentSessions
from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

WORKING_SETS = (0.5, 1.0, 2.2, 4.0)
WORKERS = (1, 2, 4)
WITHOUT = f"{OURS}, no memory for runs"
FIXED, _FIXED_SYSTEM = "best fixed number of open runs", "cache-aware"
_OF_THOSE_THAT_FIT = (0.6, 0.7, 0.8, 0.9, 1.0, 1.15)
"""Numbers of open runs that are tried, relative to the number of mean contexts that the caches hold."""
_PAGED = replace(COSTS, loop="paged")
_FITS, _BEYOND = 0.5, 2.0
_ALIKE, _TWICE, _BEST, _BEGUN_S = 0.99, 2.0, 0.95, 10.0
RECORDED = (
    "claude_code_sessions_A.jsonl.gz",
    "lmcache_miniswe.jsonl.gz",
    "autocoderover_run_1.jsonl.gz",
)
_RECORDED_WORKING_SET = 2.2
_SESSIONS, _EVERY_S, _LONGEST_TOKENS, _LONGEST_PAUSE_S = 48, 2.0, 130_000, 30.0
"""Number of sessions of a recorded file, and the time between two beginnings. Sessions with larger
prompts are left out, and the rest of a longer pause, which was a person's."""

THROUGHPUT = ReportColumn("tok/s", lambda s: s["tokens_per_s"])
BEGUN = ReportColumn("p99 TTFT of begun runs (s)", lambda s: s["begun_p99_s"], 1)
COLUMNS = (
    THROUGHPUT,
    ReportColumn("hit rate", lambda s: float(s["prefix_hit_rate"]), 3),
    BEGUN,
    ReportColumn("p50 wait to begin (s)", lambda s: s["begin_p50_s"], 1),
    ReportColumn("longest (s)", lambda s: s["begin_max_s"], 1),
    ReportColumn("p50 run (s)", lambda s: float(s["interaction_latency_s"]["p50"]), 0),
    ReportColumn("all done (s)", lambda s: float(s["makespan_s"]), 0),
)


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


def memory_systems() -> dict[str, SystemConfig]:
    """Return the systems of the report by name."""
    systems = {name: SYSTEMS[name] for name in ("cache-aware", "vtc", "d2lpm")}
    systems[WITHOUT] = SYSTEMS[OURS].with_options({"resident_share": None})
    return {**systems, OURS: SYSTEMS[OURS]}


def memory(setting: Setting) -> Report:
    """Return a row for each system in each cell."""
    cells = generated_cells(setting, WORKING_SETS, WORKERS) + recorded_cells(setting)
    return report_of(setting, cells)


def report_of(setting: Setting, cells: Sequence[MemoryCell]) -> Report:
    """Return a row for each system in some cells."""
    jobs: dict[str, list[SimulationJob]] = {}
    for cell in cells:
        variants: list[tuple[str, SystemConfig, int | None]] = [
            (name, system, None) for name, system in memory_systems().items()
        ]
        if cell.working_set > _BEYOND:
            variants += [
                (f"{FIXED}: {number}", SYSTEMS[_FIXED_SYSTEM], number) for number in cell.open_runs
            ]
        for name, system, open_runs in variants:
            label = cell.label(name)
            jobs[label] = [
                SimulationJob(
                    label,
                    trace,
                    system,
                    costs,
                    ReplayOptions(workers=cell.workers, seed=seed, open_runs=open_runs),
                    figures=_figures,
                )
                for seed, costs, trace in zip(
                    setting.seed_numbers, cell.costs, cell.traces, strict=True
                )
            ]
    summaries = setting.summaries(jobs)
    rows = {label: ReportRow(label, measure(COLUMNS, of)) for label, of in summaries.items()}
    for cell in cells:
        _keep_best(rows, cell)
    return Report(
        "memory",
        "agents beyond the memory of their caches",
        _text(setting),
        COLUMNS,
        list(rows.values()),
        claims(rows, cells),
    )


def _keep_best(rows: dict[str, ReportRow], cell: MemoryCell) -> None:
    """Remove the rows of a cell with a fixed number of open runs but the one with most tokens/s."""
    found = [label for label in rows if label.startswith(cell.label(FIXED))]
    for label in sorted(found, key=lambda label: _tokens_per_s(rows[label]))[:-1]:
        del rows[label]


def _tokens_per_s(row: ReportRow) -> float:
    return row.measured[THROUGHPUT.name].value


def _text(setting: Setting) -> str:
    sessions = AgentSessions()
    return (
        f"Cost model {COSTS.name}, {_PAGED.kv_capacity_tokens:,} tokens of KV cache a worker, blocks "
        f"kept as in vLLM. Sessions of {sessions.turns} turns, {sessions.mean_tokens:,.0f} tokens in "
        f"the mean, of {sessions.users} users of {sessions.tenants} tenants, within "
        f"{sessions.within_s:g} s; a tool takes {sessions.tool_s:g} s. Recorded sessions: up to "
        f"{_SESSIONS} of a file, with prompts of up to {_LONGEST_TOKENS:,} tokens and pauses cut at "
        f"{_LONGEST_PAUSE_S:g} s, of 8 users of 4 tenants, one every {_EVERY_S:g} s, beside a cache of "
        f"their contexts over {_RECORDED_WORKING_SET:g}. With a fixed number of open runs they begin "
        f"in order of arrival, with {_FIXED_SYSTEM}; of {len(_OF_THOSE_THAT_FIT)} numbers the best is "
        f"shown. Medians of {setting.seeds} seeds with least and greatest."
    )


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


def claims(rows: Mapping[str, ReportRow], cells: Sequence[MemoryCell]) -> list[Check]:
    """Check that nothing is lost where all fits, and what is gained where it does not."""
    checks = []
    for cell in cells:
        row, name = rows[cell.label(OURS)], f"{cell.name}, D={cell.workers}"
        times = _tokens_per_s(row) / _tokens_per_s(rows[cell.label(WITHOUT)])
        if cell.working_set <= _FITS:
            claim = f"{name}: {_ALIKE:g} times the throughput without memory for runs"
            checks.append(Check(claim, times >= _ALIKE, f"{times:.3f} times"))
        elif cell.working_set > _BEYOND:
            claim = f"{name}: {_TWICE:g} times the throughput without memory for runs"
            checks.append(Check(claim, times >= _TWICE, f"{times:.2f} times"))
            fixed = cell.label(FIXED)
            best = max(
                _tokens_per_s(each) for label, each in rows.items() if label.startswith(fixed)
            )
            claim = f"{name}: {_BEST:g} of the throughput with the best fixed number of open runs"
            checks.append(
                Check(claim, _tokens_per_s(row) >= _BEST * best, f"{_tokens_per_s(row) / best:.2f}")
            )
        wait_s = row.measured[BEGUN.name].value
        claim = f"{name}: p99 TTFT of begun runs at most {_BEGUN_S:g} s"
        checks.append(Check(claim, wait_s <= _BEGUN_S, f"{wait_s:.1f} s"))
    return checks
