"""Our trace format: one interaction per line, JSON, plain or gzip.

The fields, their meaning and their defaults are in ``docs/guide/traces.md``. Reading checks the
properties that the simulator relies on and ignores unknown keys. Writing is all or nothing: a
temporary file beside the target replaces it once every interaction has been read back unchanged.
Equal traces give equal bytes.

Weakness: an id may stand for different prefixes in two calls; only duplicate ids and too many
blocks of one prompt are detected.
"""

from __future__ import annotations

import gzip
import heapq
import json
import os
import secrets
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.lines import TraceLine, read_lines, shown, trace_name
from fairserve.engine.simulated.traces.model import (
    Interaction,
    Scope,
    Trace,
    TraceCall,
    TraceError,
)

UNNAMED = "default"
"""Name of the app or agent in a file that names none."""


def read_interactions(path: Path, *, defaults: Defaults = Defaults()) -> Trace:
    """Read a trace in our format.

    Null or missing tenant, user, arrival and gap are taken from ``defaults``. An output of 0 tokens
    counts as 1. Raises `TraceError` with file and line for anything else that is not as documented.
    """
    interactions: list[Interaction] = []
    line_by_id: dict[str, int] = {}
    block_tokens = 0
    for line in read_lines(path):
        record = line.json_object()
        size = line.integer(record.get("bs"), "bs", least=1)
        block_tokens = block_tokens or size
        if size != block_tokens:
            raise line.error(f"bs {size}, but {block_tokens} above; one size a file is allowed")
        interaction = _interaction(line, record, size, defaults)
        first = line_by_id.setdefault(interaction.interaction_id, line.number)
        if first != line.number:
            raise line.error(f"iid {shown(interaction.interaction_id)} is also in line {first}")
        interactions.append(interaction)
    if not interactions:
        raise TraceError(f"{path}:1: holds no interactions; at least one is needed")
    return Trace(trace_name(path), block_tokens, ()).with_interactions(interactions)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` in our format, as gzip if the name ends in ``.gz``.

    An existing file is replaced only after everything was written; on any error it is unchanged.
    Raises `TraceError` if the trace is empty, would not read back equal, or the file cannot be
    written.
    """
    path = Path(path)
    data = encode_trace(trace, path)
    if path.name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)  # no time and no name in the header
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror or error})") from None


def encode_trace(trace: Trace, path: Path) -> bytes:
    """Return ``trace`` in our format as bytes; ``path`` is for errors, which are as in `write_trace`."""
    if not trace.interactions:
        raise TraceError(f"{path}: the trace holds no interactions; at least one is needed")
    texts: list[str] = []
    seen: set[str] = set()
    for interaction in trace.interactions:
        record = _record(interaction, trace.block_tokens)
        line = TraceLine(path, len(texts) + 1, json.dumps(record, separators=(",", ":")))
        back = _interaction(line, line.json_object(), trace.block_tokens, Defaults())
        if back != interaction or interaction.interaction_id in seen:
            raise line.error(
                f"interaction {shown(interaction.interaction_id)} would not read back as it is: "
                "names must not be empty, ids not occur twice, outputs be at least 1 token, "
                "calls come after their deps"
            )
        seen.add(interaction.interaction_id)
        texts.append(line.text)
    return "".join(f"{text}\n" for text in texts).encode()


def _record(interaction: Interaction, block_tokens: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "iid": interaction.interaction_id,
        "tenant": interaction.tenant,
        "app": interaction.app,
        "user": interaction.user,
        "arrival_s": interaction.arrival_s,
        "bs": block_tokens,
        "scope": interaction.scope,
    }
    if interaction.group:
        record["group"] = interaction.group
    record["calls"] = [
        {
            "id": call.call_id,
            "agent": call.agent,
            "deps": list(call.deps),
            "gap": call.gap_s,
            "in": call.prompt_tokens,
            "sys": call.system_tokens,
            "out": call.output_tokens,
            "n": call.samples,
            "blk": [list(run) for run in call.blocks],
        }
        for call in interaction.calls
    ]
    return record


def _interaction(
    line: TraceLine, record: dict[str, Any], block_tokens: int, defaults: Defaults
) -> Interaction:
    records = record.get("calls")
    if not isinstance(records, list) or not records:
        raise line.error("calls must be a list of at least one call")
    calls = [_call(line, index, call, block_tokens, defaults) for index, call in enumerate(records)]
    arrival_s = record.get("arrival_s")
    scope = record.get("scope", "file")
    if scope not in ("file", "session"):
        raise line.error(f'scope {shown(scope)}; allowed are "file", "session"')
    group = record.get("group", "")
    if not isinstance(group, str):
        raise line.error(f"group must be a string, got {shown(group)}")
    return Interaction(
        interaction_id=line.identifier(record.get("iid"), "iid"),
        tenant=_name(line, record, "tenant", defaults.tenant),
        app=_name(line, record, "app", UNNAMED),
        user=_name(line, record, "user", defaults.user),
        arrival_s=(
            defaults.arrival_s
            if arrival_s is None
            else line.number_at_least_zero(arrival_s, "arrival_s")
        ),
        calls=_in_order(line, calls),
        scope=cast("Scope", scope),
        group=group,
        origin=line.origin,
    )


def _name(line: TraceLine, record: dict[str, Any], key: str, default: str) -> str:
    value = record.get(key)
    return default if value is None else line.identifier(value, key)


def _call(
    line: TraceLine, index: int, record: object, block_tokens: int, defaults: Defaults
) -> TraceCall:
    if not isinstance(record, dict):
        raise line.error(f"calls[{index}] must be an object, got {shown(record)}")
    get = record.get
    call_id = line.identifier(get("id"), f"calls[{index}].id")
    where = f"call {call_id}: "
    deps = get("deps", [])
    if not isinstance(deps, list):
        raise line.error(f"{where}deps must be a list of ids, got {shown(deps)}")
    gap = get("gap")
    prompt_tokens = line.integer(get("in"), where + "in", least=1)
    system_tokens = line.integer(get("sys", 0), where + "sys")
    if system_tokens > prompt_tokens:
        raise line.error(
            f"{where}sys {system_tokens} exceeds in {prompt_tokens}, of which it is a part"
        )
    return TraceCall(
        call_id=call_id,
        agent=UNNAMED if get("agent") is None else line.identifier(get("agent"), where + "agent"),
        deps=tuple(dict.fromkeys(line.identifier(dep, where + "deps") for dep in deps)),
        gap_s=defaults.gap_s if gap is None else line.number_at_least_zero(gap, where + "gap"),
        input_tokens=prompt_tokens - system_tokens,
        system_tokens=system_tokens,
        output_tokens=max(line.integer(get("out"), where + "out"), 1),
        samples=line.integer(get("n", 1), where + "n", least=1),
        blocks=_blocks(line, where, get("blk", []), prompt_tokens // block_tokens),
    )


def _blocks(line: TraceLine, where: str, runs: object, most: int) -> tuple[tuple[int, int], ...]:
    if not isinstance(runs, list):
        raise line.error(f"{where}blk must be a list of [start, count], got {shown(runs)}")
    blocks: list[tuple[int, int]] = []
    total = 0
    for run in runs:
        if not isinstance(run, list) or len(run) != 2:
            raise line.error(f"{where}blk must hold [start, count], got {shown(run)}")
        count = line.integer(run[1], where + "a count of blk", least=1)
        blocks.append((line.integer(run[0], where + "a start of blk"), count))
        total += count
    if total > most:
        raise line.error(f"{where}blk holds {total} blocks, the prompt has {most} full ones")
    if any(start + count > after for (start, count), (after, _) in pairwise(sorted(blocks))):
        raise line.error(f"{where}blk holds an id twice; an id stands for a whole prefix")
    return tuple(blocks)


def _in_order(line: TraceLine, calls: Sequence[TraceCall]) -> tuple[TraceCall, ...]:
    """Sort calls, dependencies first; otherwise in the order of the file."""
    index_by_id: dict[str, int] = {}
    for index, call in enumerate(calls):
        if index_by_id.setdefault(call.call_id, index) != index:
            raise line.error(f"call {call.call_id}: the id occurs twice in the interaction")
    dependants: list[list[int]] = [[] for _ in calls]
    missing = [len(call.deps) for call in calls]
    sorted_already = True
    for index, call in enumerate(calls):
        for dep in call.deps:
            before = index_by_id.get(dep)
            if before is None:
                raise line.error(
                    f"call {call.call_id}: unknown dependency {shown(dep)}; "
                    "ids of calls in the same interaction are allowed"
                )
            dependants[before].append(index)
            sorted_already &= before < index
    if sorted_already:
        return tuple(calls)
    ready = [index for index, count in enumerate(missing) if not count]
    ordered: list[TraceCall] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(calls[index])
        for dependant in dependants[index]:
            missing[dependant] -= 1
            if not missing[dependant]:
                heapq.heappush(ready, dependant)
    if len(ordered) < len(calls):
        raise line.error(f"deps form a cycle: {' -> '.join(_cycle(calls, index_by_id, missing))}")
    return tuple(ordered)


def _cycle(
    calls: Sequence[TraceCall], index_by_id: dict[str, int], missing: Sequence[int]
) -> list[str]:
    """Return the call ids around one cycle: each depends on the one after it."""
    index = next(i for i, count in enumerate(missing) if count)
    path: list[int] = []
    while index not in path:
        path.append(index)
        index = next(i for i in map(index_by_id.__getitem__, calls[index].deps) if missing[i])
    ids = [calls[i].call_id for i in [*path[path.index(index) :], index]]
    return ids if len(ids) <= 8 else [*ids[:7], "..."]
