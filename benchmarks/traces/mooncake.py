"""The Mooncake traces: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``.

A hash id stands for a block of 512 tokens and everything before it. The last id of a prompt usually
stands for a partial block, which an engine's prefix cache does not keep: ids beyond
``input_length // 512`` are dropped.

Weakness: the trace has no sessions; a prompt that continues an earlier one is a run of its own.
"""

from __future__ import annotations

from pathlib import Path

from fairserve.benchmarks.traces.flat import flat_trace, single_call
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.lines import TraceLine, read_lines
from fairserve.engine.simulated.traces.model import Interaction, Trace

MOONCAKE_BLOCK_TOKENS = 512
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def read_mooncake(path: Path, *, defaults: Defaults = Defaults()) -> Trace:
    """Read the file; each request is an interaction, whose id is its line number.

    Raises `TraceError` for a missing key, a negative time, a prompt below 1 token, an output below 0, or
    more hash ids than the prompt has blocks, the begun one included.
    """
    requests = [_request(line, defaults) for line in read_lines(path)]
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
