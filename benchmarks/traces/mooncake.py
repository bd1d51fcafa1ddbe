"""The Mooncake traces: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``.

A hash id stands for a block of 512 tokens and everything before it. The last id of a prompt usually
stands for a partial block, which an engine's prefix cache does not keep: ids beyond
``input_length // 512`` are dropped.

Weakness: the trace has no sessions. They can be inferred: a prompt that begins with all blocks of
an earlier one continues it. Two users with the same long document then appear as one, and the gap
between two calls, taken between arrivals, includes the time of the recorded service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairserve.benchmarks.traces.flat import flat_trace, single_call
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.lines import TraceLine, read_lines
from fairserve.engine.simulated.traces.model import Interaction, Trace

MOONCAKE_BLOCK_TOKENS = 512
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
SHORTEST_SESSION_BLOCKS = 2
"""Minimum full blocks of a prompt that can be continued: all prompts share the first block."""


@dataclass(frozen=True, slots=True)
class MooncakeOptions:
    """Options for converting requests to interactions."""

    infer_sessions: bool = False
    """True joins a request to the longest open one whose full blocks it begins with."""


def read_mooncake(
    path: Path, *, defaults: Defaults = Defaults(), options: MooncakeOptions = MooncakeOptions()
) -> Trace:
    """Read the file; interaction ids are line numbers (of a session, its first request's).

    Raises `TraceError` for a missing key, a negative time, a prompt below 1 token, an output below 0, or
    more hash ids than the prompt has blocks, the begun one included.
    """
    requests = [_request(line, defaults) for line in read_lines(path)]
    if options.infer_sessions:
        requests = _sessions(flat_trace(path, requests).interactions)
    return flat_trace(path, requests, MOONCAKE_BLOCK_TOKENS)


def _request(line: TraceLine, defaults: Defaults) -> Interaction:
    record = line.json_object()
    for key in MOONCAKE_KEYS:
        if key not in record:
            raise line.error(f"{key} is missing; needed are {', '.join(MOONCAKE_KEYS)}")
    prompt_tokens = line.integer(record["input_length"], "input_length", least=1)
    return single_call(
        str(line.number),
        app="mooncake",
        arrival_s=line.number_at_least_zero(record["timestamp"], "timestamp") / 1000,
        prompt_tokens=prompt_tokens,
        output_tokens=line.integer(record["output_length"], "output_length"),
        blocks=_runs(line, record["hash_ids"], prompt_tokens),
        origin=line.origin,
        defaults=defaults,
    )


def _runs(line: TraceLine, ids: object, prompt_tokens: int) -> tuple[tuple[int, int], ...]:
    if not isinstance(ids, list):
        raise line.error("hash_ids must be a list of integers")
    allowed = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
    if len(ids) > allowed:
        raise line.error(
            f"{len(ids)} hash_ids, but input_length {prompt_tokens} has at most {allowed} blocks "
            f"of {MOONCAKE_BLOCK_TOKENS}"
        )
    for block_id in ids:
        line.integer(block_id, "each of hash_ids")
    if len(set(ids)) != len(ids):
        raise line.error("hash_ids: an id occurs twice; an id stands for a whole prefix")
    runs: list[tuple[int, int]] = []
    start, count = 0, 0
    for block_id in ids[: prompt_tokens // MOONCAKE_BLOCK_TOKENS]:
        if count and block_id == start + count:
            count += 1
        else:
            if count:
                runs.append((start, count))
            start, count = block_id, 1
    if count:
        runs.append((start, count))
    return tuple(runs)


def _sessions(requests: Sequence[Interaction]) -> list[Interaction]:
    """Join requests, given in the order of arrival, to the longest one they continue."""
    sessions: list[list[Interaction]] = []
    # An id is a whole prefix, so the last full block identifies all blocks of a prompt. At most one
    # session is open there: a prompt of the same blocks continues it.
    open_by_last_block: dict[int, int] = {}
    for request in requests:
        blocks = list(request.calls[0].block_ids)
        for length in range(len(blocks), SHORTEST_SESSION_BLOCKS - 1, -1):
            found = open_by_last_block.pop(blocks[length - 1], None)
            if found is not None:
                index = found
                sessions[index].append(request)
                break
        else:
            index = len(sessions)
            sessions.append([request])
        if len(blocks) >= SHORTEST_SESSION_BLOCKS:
            open_by_last_block[blocks[-1]] = index
    return [_joined(session) for session in sessions]


def _joined(session: list[Interaction]) -> Interaction:
    calls = []
    for index, request in enumerate(session):
        before_s = session[max(index - 1, 0)].arrival_s
        calls.append(
            replace(
                request.calls[0],
                call_id=str(index),
                deps=(str(index - 1),) if index else (),
                gap_s=request.arrival_s - before_s,
            )
        )
    return replace(session[0], calls=tuple(calls))
