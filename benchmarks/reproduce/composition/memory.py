"""``memory``: agents whose contexts together exceed the KV caches.

Sessions of agents (:mod:`fairserve.engine.simulated.traces.generate.agent_sessions`) begin within half a
minute. A cell is their working set, contexts over KV capacity, on one or two workers that keep blocks
as vLLM does. Where all contexts fit, the default must do what it does without residents; beyond, at
least twice as much, and nearly as much as with the best fixed number of open runs, which is found by
search for each cell: no system knows it, and tenants are nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

from fairserve.benchmarks.reproduce.composition.workloads import COSTS, OURS
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row, measure
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.job import Job
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.generate.agent_sessions import AgentSessions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

WORKING_SETS = (0.5, 1.0, 2.2, 4.0)
WORKERS = (1, 2)
WITHOUT = f"{OURS}, no memory for runs"
FIXED, _FIXED_SYSTEM = "best fixed number of open runs", "cache-aware"
OPEN_RUNS = (8, 10, 12, 14, 16)
"""Numbers of open runs for each worker that are tried."""
_PAGED = replace(COSTS, loop="paged")
_FITS, _BEYOND = 0.5, 2.0
_ALIKE, _TWICE, _BEST, _BEGUN_S = 0.99, 2.0, 0.95, 10.0

THROUGHPUT = Column("tok/s", lambda s: s["tokens_per_s"])
BEGUN = Column("p99 TTFT of begun runs (s)", lambda s: s["begun_p99_s"], 1)
COLUMNS = (
    THROUGHPUT,
    Column("hit rate", lambda s: float(s["prefix_hit_rate"]), 3),
    BEGUN,
    Column("p50 wait to begin (s)", lambda s: s["begin_p50_s"], 1),
    Column("longest (s)", lambda s: s["begin_max_s"], 1),
    Column("p50 run (s)", lambda s: float(s["interaction_latency_s"]["p50"]), 0),
    Column("all done (s)", lambda s: float(s["makespan_s"]), 0),
)


def memory_systems() -> dict[str, SystemConfig]:
    """Return the systems of the report by name."""
    systems = {name: SYSTEMS[name] for name in ("cache-aware", "vtc", "d2lpm")}
    systems[WITHOUT] = SYSTEMS[OURS].with_options({"resident_share": None})
    return {**systems, OURS: SYSTEMS[OURS]}


def memory(
    setting: Setting,
    working_sets: Sequence[float] = WORKING_SETS,
    workers: Sequence[int] = WORKERS,
) -> Report:
    """Return a row for each system in each cell."""
    sessions, systems = AgentSessions(), memory_systems()
    jobs: dict[str, list[Job]] = {}
    for working_set, number in product(working_sets, workers):
        costs = replace(_PAGED, kv_capacity_tokens=round(_PAGED.kv_capacity_tokens * setting.scale))
        tokens = working_set * number * costs.kv_capacity_tokens
        count = max(1, round(tokens / sessions.mean_tokens))
        traces = [sessions.trace(count, seed) for seed in setting.seed_numbers]
        variants: list[tuple[str, SystemConfig, int | None]] = [
            (name, system, None) for name, system in systems.items()
        ]
        if working_set > _BEYOND:
            variants += [
                (f"{FIXED}: {number * each}", SYSTEMS[_FIXED_SYSTEM], number * each)
                for each in OPEN_RUNS
            ]
        for name, system, open_runs in variants:
            label = _label(working_set, number, name)
            jobs[label] = [
                Job(
                    label,
                    trace,
                    system,
                    costs,
                    ReplayOptions(workers=number, seed=seed, open_runs=open_runs),
                    figures=_figures,
                )
                for seed, trace in zip(setting.seed_numbers, traces, strict=True)
            ]
    summaries = setting.summaries(jobs)
    rows = {label: Row(label, measure(COLUMNS, of)) for label, of in summaries.items()}
    _keep_best(rows, working_sets, workers)
    return Report(
        "memory",
        "agents beyond the memory of their caches",
        _text(setting, sessions),
        COLUMNS,
        list(rows.values()),
        claims(rows, working_sets, workers),
    )


def _keep_best(rows: dict[str, Row], working_sets: Sequence[float], workers: Sequence[int]) -> None:
    """Remove the rows of each cell with a fixed number of open runs but the one with most tokens/s."""
    for working_set, number in product(working_sets, workers):
        cell = _label(working_set, number, FIXED)
        found = [label for label in rows if label.startswith(cell)]
        for label in sorted(found, key=lambda label: _tokens_per_s(rows[label]))[:-1]:
            del rows[label]


def _tokens_per_s(row: Row) -> float:
    return row.measured[THROUGHPUT.name].value


def _text(setting: Setting, sessions: AgentSessions) -> str:
    tried = ", ".join(map(str, OPEN_RUNS))
    return (
        f"Cost model {COSTS.name}, {_PAGED.kv_capacity_tokens:,} tokens of KV cache a worker, blocks "
        f"kept as in vLLM. Sessions of {sessions.turns} turns, {sessions.mean_tokens:,.0f} tokens in "
        f"the mean, of {sessions.users} users of {sessions.tenants} tenants, within "
        f"{sessions.within_s:g} s; a tool takes {sessions.tool_s:g} s. With a fixed number of open "
        f"runs they begin in order of arrival, with {_FIXED_SYSTEM}; of {tried} a worker the best is "
        f"shown. Medians of {setting.seeds} seeds with least and greatest."
    )


def _label(working_set: float, workers: int, name: str) -> str:
    return f"{working_set:g} x KV, D={workers} {name}"


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


def claims(
    rows: Mapping[str, Row], working_sets: Sequence[float], workers: Sequence[int]
) -> list[Check]:
    """Check that nothing is lost where all fits, and what is gained where it does not."""
    checks = []
    for working_set, number in product(working_sets, workers):
        row = rows[_label(working_set, number, OURS)]
        times = _tokens_per_s(row) / _tokens_per_s(rows[_label(working_set, number, WITHOUT)])
        cell = f"{working_set:g} x KV, D={number}"
        if working_set <= _FITS:
            claim = f"{cell}: {_ALIKE:g} times the throughput without memory for runs"
            checks.append(Check(claim, times >= _ALIKE, f"{times:.3f} times"))
        elif working_set > _BEYOND:
            claim = f"{cell}: {_TWICE:g} times the throughput without memory for runs"
            checks.append(Check(claim, times >= _TWICE, f"{times:.2f} times"))
            fixed = _label(working_set, number, FIXED)
            best = max(
                _tokens_per_s(each) for label, each in rows.items() if label.startswith(fixed)
            )
            claim = f"{cell}: {_BEST:g} of the throughput with the best fixed number of open runs"
            checks.append(
                Check(claim, _tokens_per_s(row) >= _BEST * best, f"{_tokens_per_s(row) / best:.2f}")
            )
        wait_s = row.measured[BEGUN.name].value
        claim = f"{cell}: p99 TTFT of begun runs at most {_BEGUN_S:g} s"
        checks.append(Check(claim, wait_s <= _BEGUN_S, f"{wait_s:.1f} s"))
    return checks
