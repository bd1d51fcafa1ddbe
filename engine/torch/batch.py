"""One forward step as tensors: decodes and chunks of prefills, packed into one row of tokens.

The decodes come first, shortest context first, so that decodes of similar length are neighbours; the
prefill chunks follow. How they attend to their pages is a plan of its own, made once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.kv_tensors import KvTensors, slots_of


class AttentionPlan(Protocol):
    """How the rows of a step attend."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Query [1, H, T, D], key and value [1, KV heads, T, D] -> [T, H, D]."""
        ...


Planner = Callable[[Sequence[Chunk], Sequence[Chunk], KvTensors], AttentionPlan]
"""From the decodes and the prefills of a step, in the order of their rows."""


@dataclass(slots=True, eq=False)
class PagedState:
    """What the attention function needs in a step; the same for every layer."""

    kv: KvTensors
    write_slots: torch.Tensor
    """[T], where the keys and values of each row go"""
    plan: AttentionPlan


@dataclass(slots=True, eq=False)
class Batch:
    """The arguments of one forward call, and the chunks in the order of their rows."""

    chunks: list[Chunk]
    input_ids: torch.Tensor
    """[1, T]"""
    positions: torch.Tensor
    """[1, T]"""
    logit_rows: torch.Tensor
    """[S], the last row of each chunk that gives a token, in the order of the chunks"""
    state: PagedState


def assemble(chunks: list[Chunk], kv: KvTensors, planner: Planner) -> Batch:
    """Pack chunks into a batch. The sequences must have pages for these tokens already."""
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
    device = kv.device
    return Batch(
        chunks=ordered,
        input_ids=torch.tensor([tokens], device=device),
        positions=torch.tensor([positions], device=device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.long, device=device),
        state=PagedState(kv, torch.tensor(slots, device=device), planner(decodes, prefills, kv)),
    )
