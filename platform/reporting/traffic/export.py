"""Convert a recording into a trace: runs, dependencies, gaps, and small chained block ids.

A call depends on its parents, named by its client or inferred by the tracker. The gap is the time from
the last end of these to its arrival. Calls without output (cancelled, failed before the first token) are
omitted, and their dependents inherit their dependencies.

Runs that began before the requested time are omitted, as are runs with missing calls, which were deleted
with their segment or never written; gaps in the stages of the recorded calls reveal them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.platform.reporting.traffic.lines import Keys, RecordedCall

Runs = tuple[tuple[int, int], ...]
"""Block ids as runs: first id, number of ids."""


@dataclass(frozen=True, slots=True)
class Export:
    """A trace, with counts of the omitted runs and calls."""

    trace: Trace
    begin_at: float
    """UTC epoch second of the trace's second 0."""
    incomplete_runs: int
    """Omitted runs with missing calls."""
    empty_calls: int
    """Omitted calls without output."""


def export(calls: Sequence[RecordedCall], block_tokens: int, since_at: float) -> Export:
    """Return the trace of all runs that began since ``since_at``. ``calls`` are in segment order."""
    by_run: dict[str, list[RecordedCall]] = {}
    for call in calls:
        if call.opened_at >= since_at:
            by_run.setdefault(call.run, []).append(call)
    runs: list[tuple[list[RecordedCall], dict[str, list[str]]]] = []
    incomplete = empty = 0
    for own in by_run.values():
        own.sort(key=lambda call: (call.begin_at, call.stage))
        deps = _dependencies(own)
        if deps is None:
            incomplete += 1
            continue
        left = [call for call in own if call.output_tokens > 0]
        empty += len(own) - len(left)
        if left:
            runs.append((left, deps))
    runs.sort(key=lambda run: run[0][0].begin_at)
    begin_at = runs[0][0][0].begin_at if runs else since_at
    blocks = _blocks([call for run, _ in runs for call in run])
    interactions = [_interaction(run, deps, blocks, block_tokens, begin_at) for run, deps in runs]
    trace = Trace("traffic", block_tokens, ()).with_interactions(interactions)
    return Export(trace, begin_at, incomplete, empty)


def _interaction(
    run: list[RecordedCall],
    deps: dict[str, list[str]],
    blocks: dict[int, Runs],
    block_tokens: int,
    begin_at: float,
) -> Interaction:
    first = run[0]
    names = {call.call: str(number) for number, call in enumerate(run, start=1)}
    ends = {call.call: call.end_at for call in run}
    calls = []
    for call in run:
        before = _without_empty(call.call, deps, names)
        ready_at = max((ends[dep] for dep in before), default=first.begin_at)
        calls.append(
            TraceCall(
                call_id=names[call.call],
                agent="default" if call.agent is None else f"agent-{call.agent}",
                deps=tuple(names[dep] for dep in before),
                gap_s=round(max(0.0, call.begin_at - ready_at), 6),
                input_tokens=call.prompt_tokens - call.system_tokens,
                system_tokens=call.system_tokens,
                output_tokens=-(-call.output_tokens // call.samples),
                samples=call.samples,
                blocks=_first_blocks(blocks[id(call)], call.prompt_tokens // block_tokens),
            )
        )
    return Interaction(
        interaction_id=first.run,
        tenant=first.tenant,
        app=first.app,
        user=f"user-{first.user}",
        arrival_s=round(first.begin_at - begin_at, 6),
        calls=tuple(_in_order(calls)),
    )


# --- dependencies ----------------------------------------------------------------------------------


def _dependencies(run: Sequence[RecordedCall]) -> dict[str, list[str]] | None:
    """Return the dependencies of each call; None if a call is missing. ``run`` is sorted by start."""
    stages = {call.call: call.stage for call in run}
    deps: dict[str, list[str]] = {}
    for call in run:
        own = list(dict.fromkeys(call.deps))
        if any(dep not in stages for dep in own):
            return None
        if call.stage != 1 + max((stages[dep] for dep in own), default=0):
            return None
        deps[call.call] = own
    return deps


def _without_empty(call: str, deps: dict[str, list[str]], kept: dict[str, str]) -> list[str]:
    """Return the dependencies of a call, with omitted calls replaced by their dependencies."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    todo = list(reversed(deps[call]))
    while todo:
        dep = todo.pop()
        if dep in seen:
            continue
        seen.add(dep)
        if dep in kept:
            found[dep] = None
        else:
            todo += reversed(deps[dep])
    return list(found)


def _in_order(calls: list[TraceCall]) -> list[TraceCall]:
    """Sort parents before children: a named parent may end after its child's arrival."""
    by_id = {call.call_id: call for call in calls}
    placed: dict[str, TraceCall] = {}
    for call in calls:
        todo = [call]
        while todo:
            last = todo[-1]
            missing = [by_id[dep] for dep in last.deps if dep not in placed]
            if missing:
                todo += missing
            else:
                placed.setdefault(last.call_id, todo.pop())
    return list(placed.values())


# --- block ids ------------------------------------------------------------------------------------


def _blocks(calls: Sequence[RecordedCall]) -> dict[int, Runs]:
    """Return ids of each call's full blocks by the call's ``id()``, from 1 in order of appearance."""
    needed: dict[int, RecordedCall] = {}
    for call in calls:
        chain = []
        node: RecordedCall | None = call
        while node is not None and id(node) not in needed:
            chain.append(node)
            node = node.like
        for link in reversed(chain):  # a call follows the calls that it refers to
            needed[id(link)] = link
    if not needed:
        return {}
    keys: Keys = np.concatenate([call.own_keys for call in needed.values()])
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(1, len(first) + 1)
    ids = rank[inverse]
    blocks: dict[int, Runs] = {}
    begin = 0
    for name, call in needed.items():
        own = ids[begin : begin + len(call.own_keys)]
        begin += len(call.own_keys)
        shared = () if call.like is None else _first_blocks(blocks[id(call.like)], call.like_blocks)
        blocks[name] = _joined(shared, _runs(own))
    return blocks


def _runs(ids: npt.NDArray[np.int64]) -> Runs:
    """Return ids as runs of consecutive ids."""
    if not len(ids):
        return ()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ids) != 1) + 1])
    counts = np.diff(np.append(starts, len(ids)))
    return tuple(zip(ids[starts].tolist(), counts.tolist(), strict=True))


def _joined(first: Runs, then: Runs) -> Runs:
    if first and then and first[-1][0] + first[-1][1] == then[0][0]:
        return (*first[:-1], (first[-1][0], first[-1][1] + then[0][1]), *then[1:])
    return first + then


def _first_blocks(runs: Runs, blocks: int) -> Runs:
    found: list[tuple[int, int]] = []
    for start, count in runs:
        if blocks <= 0:
            break
        found.append((start, min(count, blocks)))
        blocks -= count
    return tuple(found)
