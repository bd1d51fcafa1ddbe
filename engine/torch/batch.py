"""One forward step as tensors: decodes and chunks of prefills, packed into one row of tokens.

Decodes come first, shortest context first, so that decodes of similar length are adjacent; prefill
chunks follow. The plan of their attention to pages is made once per step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.kv_tensors import KvTensors, slots_of
from fairserve.engine.torch.launched_step import PendingTokens, sources_of
from fairserve.engine.torch.packed_linear import padded_rows
from fairserve.engine.torch.transfer import to_device


class AttentionPlan(Protocol):
    """Attention of the rows of a step."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Compute attention: query [1, H, T, D], key and value [1, KV heads, T, D] -> [T, H, D]."""
        ...


Planner = Callable[[Sequence[Chunk], Sequence[Chunk], KvTensors], AttentionPlan]
"""Makes a plan for the decodes and prefills of a step, in the order of their rows."""


@dataclass(slots=True, eq=False)
class PagedState:
    """Input of the attention function in a step, the same for every layer."""

    kv: KvTensors
    write_slots: torch.Tensor
    """[T], slot of each row's keys and values; further rows are padding"""
    plan: AttentionPlan


@dataclass(slots=True, eq=False)
class ForwardBatch:
    """Arguments of one forward call, and the chunks in the order of their rows."""

    chunks: list[Chunk]
    input_ids: torch.Tensor
    """[1, T]"""
    positions: torch.Tensor
    """[1, T]"""
    logit_rows: torch.Tensor
    """[S], last row of each chunk that yields a token, in the order of the chunks"""
    state: PagedState


def assemble(
    chunks: list[Chunk],
    kv: KvTensors,
    planner: Planner,
    pending: PendingTokens | None = None,
    *,
    pad_rows: bool = False,
) -> ForwardBatch:
    """Pack chunks into a batch. The sequences must have pages for these tokens already.

    ``pending`` contains the input tokens that decodes still lack. With ``pad_rows`` further rows
    are appended, whose results are discarded.
    """
    decodes = sorted(
        (chunk for chunk in chunks if chunk.is_decode),
        key=lambda chunk: chunk.sequence.computed_tokens,
    )
    prefills = [chunk for chunk in chunks if not chunk.is_decode]
    ordered = decodes + prefills
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    for chunk in ordered:
        sequence = chunk.sequence
        start = sequence.computed_tokens
        stop = start + chunk.tokens
        tokens += sequence.tokens[start:stop]
        positions += range(start, stop)
        slots += slots_of(sequence, start, stop)
        if chunk.gives_token:
            logit_rows.append(len(tokens) - 1)
    sources = sources_of(decodes, pending)
    padding = [0] * (padded_rows(len(tokens)) - len(tokens) if pad_rows else 0)
    tokens += padding
    positions += padding
    parts = [tokens, positions, slots, logit_rows, [] if sources is None else sources]
    numbers = np.fromiter(itertools.chain.from_iterable(parts), dtype=np.int64)
    sent = to_device(numbers, kv.device)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    input_ids = sent[: ends[0]]
    if pending is not None and sources is not None:
        count = len(sources)
        input_ids = input_ids.clone()
        input_ids[:count] = pending.resolve(input_ids[:count], sent[-count:])
    return ForwardBatch(
        chunks=ordered,
        input_ids=input_ids[None],
        positions=sent[None, ends[0] : ends[1]],
        logit_rows=sent[ends[2] : ends[3]],
        state=PagedState(kv, sent[ends[1] : ends[2]], planner(decodes, prefills, kv)),
    )
