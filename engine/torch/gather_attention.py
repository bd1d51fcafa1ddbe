"""Attention in plain torch: pages are gathered into one tensor, then attended to.

Decodes of similar context length attend as one padded group, prefill chunks one by one.

Weakness: keys and values are copied three times. On a CPU the forward's Python dominates; on a GPU
:mod:`fairserve.engine.torch.kernel_attention` reads pages in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from fairserve.engine.torch.chunk import Chunk
from fairserve.engine.torch.kv_tensors import KvTensors
from fairserve.engine.torch.page_pool import PAD_PAGE, PAGE_TOKENS, pages_for
from fairserve.engine.torch.transfer import to_device

_PADDING_FACTOR = 1.5
_PADDING_PAGES = 8
"""Maximum padding in a decode group: a factor of its shortest member, plus this many pages."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefillSpan:
    """A chunk in rows ``start`` to ``stop``. Without ``pages`` the chunk has no earlier context."""

    start: int
    stop: int
    context_tokens: int
    """Tokens that the chunk attends to, its own included."""
    pages: torch.Tensor | None
    """[1, P]"""
    mask: torch.Tensor | None
    """[1, 1, chunk, context], 0 or -inf"""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeGroup:
    """Decodes of similar context lengths in rows ``start`` to ``stop``."""

    start: int
    stop: int
    pages: torch.Tensor
    """[B, P], padded with the pad page"""
    mask: torch.Tensor
    """[B, 1, 1, P * 16], 0 or -inf"""


class GatherPlan:
    """Attention of the rows of one step, the same for every layer."""

    def __init__(
        self,
        decodes: Sequence[Chunk],
        prefills: Sequence[Chunk],
        kv: KvTensors,
    ) -> None:
        """Create a plan; ``decodes`` come first and are sorted by context length."""
        self._kv = kv
        self._decodes: list[DecodeGroup] = []
        self._prefills: list[PrefillSpan] = []
        row = 0
        for group in _similar_lengths(decodes):
            self._decodes.append(_decode_group(group, row, kv.dtype, kv.device))
            row += len(group)
        for chunk in prefills:
            self._prefills.append(_prefill_span(chunk, row, kv.dtype, kv.device))
            row += chunk.tokens
        self._rows = row
        """Number of rows of the chunks; later rows are padding."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Compute attention: query [1, H, T, D], key and value [1, KV heads, T, D] -> [T, H, D]."""
        output = torch.empty_like(query[0].transpose(0, 1), memory_format=torch.contiguous_format)
        output[self._rows :] = 0
        for group in self._decodes:
            output[group.start : group.stop] = self._decode(layer, group, query, scaling)
        for span in self._prefills:
            output[span.start : span.stop] = self._prefill(layer, span, query, key, value, scaling)
        return output

    def _decode(
        self, layer: int, group: DecodeGroup, query: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        keys, values = self._kv.read(layer, group.pages)
        batch, kv_heads, _, head_size = keys.shape
        # The query heads that share a KV head become query rows of that head: nothing is repeated.
        rows = query[0, :, group.start : group.stop].transpose(0, 1)
        grouped = rows.reshape(batch, kv_heads, -1, head_size)
        result = attend(grouped, keys, values, attn_mask=group.mask, scale=scaling)
        return result.reshape(batch, -1, head_size)

    def _prefill(
        self,
        layer: int,
        span: PrefillSpan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        rows = query[:, :, span.start : span.stop]
        if span.pages is None:
            keys = key[:, :, span.start : span.stop]
            values = value[:, :, span.start : span.stop]
        else:
            keys, values = self._kv.read(layer, span.pages)
            keys = keys[:, :, : span.context_tokens]
            values = values[:, :, : span.context_tokens]
        result = attend(
            rows,
            keys,
            values,
            attn_mask=span.mask,
            is_causal=span.mask is None,
            scale=scaling,
            enable_gqa=rows.shape[1] != keys.shape[1],
        )
        return result[0].transpose(0, 1)


def _similar_lengths(decodes: Sequence[Chunk]) -> list[list[Chunk]]:
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
        pages=to_device(table, device),
        mask=to_device(mask, device).to(dtype),
    )


def _prefill_span(chunk: Chunk, row: int, dtype: torch.dtype, device: torch.device) -> PrefillSpan:
    sequence = chunk.sequence
    past = sequence.computed_tokens
    context = past + chunk.tokens
    if past == 0:
        return PrefillSpan(row, row + chunk.tokens, context, None, None)
    pages = to_device(sequence.page_table[: pages_for(context)], device)[None]
    mask = torch.full((chunk.tokens, context), -torch.inf, dtype=dtype, device=device)
    mask.triu_(diagonal=past + 1)
    return PrefillSpan(row, row + chunk.tokens, context, pages, mask[None, None])
