"""One forward step as tensors: decodes and chunks of prefills, packed into one row of tokens.

The decodes come first, shortest context first, so that decodes of similar length are neighbours
and attend as one padded group; the prefill chunks follow, each attending on its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from fairserve.engine.torch.kv_tensors import KvTensors, slots_of
from fairserve.engine.torch.page_pool import PAD_PAGE, PAGE_TOKENS, pages_for
from fairserve.engine.torch.sequence import Sequence

_PADDING_FACTOR = 1.5
_PADDING_PAGES = 8
"""A decode group pads to at most this factor of its shortest member, plus this many pages."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A sequence and how many of its uncomputed tokens are computed in this step."""

    sequence: Sequence
    tokens: int

    @property
    def is_decode(self) -> bool:
        """A single token with a context: it attends in a group."""
        return self.tokens == 1 and self.sequence.computed_tokens > 0

    @property
    def gives_token(self) -> bool:
        """Whether the step ends with the logits of the sequence's next token."""
        return self.tokens == self.sequence.uncomputed_tokens


@dataclass(frozen=True, slots=True, eq=False)
class PrefillSpan:
    """Rows ``start`` to ``stop`` are one chunk. Without ``pages`` nothing precedes the chunk."""

    start: int
    stop: int
    context_tokens: int
    """Tokens that it attends to, the chunk's own included."""
    pages: torch.Tensor | None
    """[1, P]"""
    mask: torch.Tensor | None
    """[1, 1, chunk, context], 0 or -inf"""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeGroup:
    """Rows ``start`` to ``stop`` are decodes of similar context lengths."""

    start: int
    stop: int
    pages: torch.Tensor
    """[B, P], padded with the pad page"""
    mask: torch.Tensor
    """[B, 1, 1, P * 16], 0 or -inf"""


@dataclass(slots=True, eq=False)
class PagedState:
    """What the attention function needs in a step; the same for every layer."""

    kv: KvTensors
    write_slots: torch.Tensor
    decodes: list[DecodeGroup] = field(default_factory=list)
    prefills: list[PrefillSpan] = field(default_factory=list)


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


def assemble(chunks: list[Chunk], kv: KvTensors, dtype: torch.dtype, device: torch.device) -> Batch:
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
    state = PagedState(kv, torch.tensor(slots, device=device))
    row = 0
    for group in _similar_lengths(decodes):
        state.decodes.append(_decode_group(group, row, dtype, device))
        row += len(group)
    for chunk in prefills:
        state.prefills.append(_prefill_span(chunk, row, dtype, device))
        row += chunk.tokens
    return Batch(
        chunks=ordered,
        input_ids=torch.tensor([tokens], device=device),
        positions=torch.tensor([positions], device=device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.long, device=device),
        state=state,
    )


def _similar_lengths(decodes: list[Chunk]) -> list[list[Chunk]]:
    groups: list[list[Chunk]] = []
    limit = -1.0
    for chunk in decodes:
        pages = pages_for(chunk.sequence.computed_tokens + 1)
        if pages > limit:
            groups.append([])
            limit = pages * _PADDING_FACTOR + _PADDING_PAGES
        groups[-1].append(chunk)
    return groups


def _decode_group(
    group: list[Chunk], row: int, dtype: torch.dtype, device: torch.device
) -> DecodeGroup:
    lengths = np.array([chunk.sequence.computed_tokens + 1 for chunk in group])
    width = pages_for(int(lengths[-1]))
    table = np.full((len(group), width), PAD_PAGE, dtype=np.int64)
    for index, chunk in enumerate(group):
        used = pages_for(int(lengths[index]))
        table[index, :used] = chunk.sequence.page_table[:used]
    visible = np.arange(width * PAGE_TOKENS) < lengths[:, None]
    mask = np.where(visible, np.float32(0), np.float32(-np.inf))[:, None, None, :]
    return DecodeGroup(
        start=row,
        stop=row + len(group),
        pages=torch.from_numpy(table).to(device),
        mask=torch.from_numpy(mask).to(device=device, dtype=dtype),
    )


def _prefill_span(chunk: Chunk, row: int, dtype: torch.dtype, device: torch.device) -> PrefillSpan:
    sequence = chunk.sequence
    past = sequence.computed_tokens
    context = past + chunk.tokens
    if past == 0:
        return PrefillSpan(row, row + chunk.tokens, context, None, None)
    pages = torch.from_numpy(sequence.page_table[: pages_for(context)]).to(device)[None]
    mask = torch.full((chunk.tokens, context), -torch.inf, dtype=dtype, device=device)
    mask.triu_(diagonal=past + 1)
    return PrefillSpan(row, row + chunk.tokens, context, pages, mask[None, None])
