"""Attention with kernels that read pages in place, for GPUs.

The plan of a step is a few small integer tensors, copied to the device in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.kv_tensors import KvTensors
from fairserve.engine.torch.page_pool import PAD_PAGE, pages_for
from fairserve.engine.torch.paged_kernels import (
    TILE_ROWS,
    DecodeScratch,
    decode_attention,
    prefill_attention,
)
from fairserve.engine.torch.transfer import to_device

_Ints = npt.NDArray[np.int32]
_PROGRAMS_PER_PROCESSOR = 4
"""Splits of the decode kernel per processor: enough that a slow one does not delay the others."""
_MOST_SPLITS = 16


@dataclass(slots=True, eq=False)
class Prefills:
    """The chunks of a step, as arguments of :func:`prefill_attention`."""

    table: torch.Tensor
    tiles: torch.Tensor
    spans: torch.Tensor


@dataclass(slots=True, eq=False)
class KernelPlan:
    """Attention of the rows of one step, decodes first, the same for every layer."""

    kv: KvTensors
    table: torch.Tensor
    """[decodes, P]"""
    lengths: torch.Tensor
    """[decodes]"""
    prefills: Prefills | None = None
    scratch: DecodeScratch | None = None
    """Scratch memory, allocated at the first layer, which knows the number of heads."""

    @classmethod
    def of(cls, decodes: Sequence[Chunk], prefills: Sequence[Chunk], kv: KvTensors) -> KernelPlan:
        """Return a plan whose tensors are on the device of the pages."""
        lengths = np.array([c.sequence.computed_tokens + 1 for c in decodes], dtype=np.int32)
        spans, tiles = _spans(prefills, len(decodes))
        parts = [page_tables(decodes), lengths, page_tables(prefills), tiles, spans]
        flat = to_device(np.concatenate([part.ravel() for part in parts]), kv.device)
        ends = np.cumsum([part.size for part in parts]).tolist()
        shaped = [
            flat[end - part.size : end].view(part.shape)
            for end, part in zip(ends, parts, strict=True)
        ]
        return cls(kv, shaped[0], shaped[1], Prefills(*shaped[2:]) if prefills else None)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Compute attention: query [1, H, T, D] -> [T, H, D]; reads keys and values from the pages."""
        rows = query[0].transpose(0, 1)
        output = torch.empty_like(rows, memory_format=torch.contiguous_format)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        keys, values = self.kv.keys[layer], self.kv.values[layer]
        decodes = len(self.lengths)
        if decodes:
            if self.scratch is None:
                self.scratch = _scratch(decodes, rows.shape[1], self.kv)
            decode_attention(
                rows[:decodes],
                keys,
                values,
                self.table,
                self.lengths,
                output[:decodes],
                self.scratch,
                scale,
            )
        chunks = self.prefills
        if chunks is not None:
            prefill_attention(
                rows, keys, values, chunks.table, chunks.tiles, chunks.spans, output, scale
            )
        return output


def _scratch(rows: int, heads: int, kv: KvTensors) -> DecodeScratch:
    """Return scratch memory with enough splits to use all processors even with few sequences."""
    _, _, kv_heads, head_size = kv.keys[0].shape
    processors = 1
    if kv.device.type == "cuda":
        processors = torch.cuda.get_device_properties(kv.device).multi_processor_count
    wanted = -(-_PROGRAMS_PER_PROCESSOR * processors // (rows * kv_heads))
    # A power of two, since each number is a kernel of its own.
    splits = min(1 << (wanted - 1).bit_length(), _MOST_SPLITS)
    return DecodeScratch.make(rows, heads, head_size, splits, kv.device)


def page_tables(chunks: Sequence[Chunk]) -> _Ints:
    """Return the pages of each chunk's context, [chunks, most pages of one], padded."""
    used = [pages_for(chunk.sequence.computed_tokens + chunk.tokens) for chunk in chunks]
    table = np.full((len(chunks), max(used, default=0)), PAD_PAGE, dtype=np.int32)
    for row, (chunk, pages) in enumerate(zip(chunks, used, strict=True)):
        table[row, :pages] = chunk.sequence.page_table[:pages]
    return table


def _spans(prefills: Sequence[Chunk], first_row: int) -> tuple[_Ints, _Ints]:
    """Return tiles and spans, as arguments of :func:`prefill_attention`."""
    spans = np.zeros((3, len(prefills)), dtype=np.int32)
    tiles: list[tuple[int, int]] = []
    row = first_row
    for number, chunk in enumerate(prefills):
        spans[:, number] = row, chunk.tokens, chunk.sequence.computed_tokens + chunk.tokens
        tiles += [(number, first) for first in range(0, chunk.tokens, TILE_ROWS)]
        row += chunk.tokens
    return spans, np.array(tiles, dtype=np.int32).reshape(-1, 2).T.copy()
