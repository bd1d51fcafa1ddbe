"""Attention that reads pages in place: Triton kernels for decodes and for chunks of prefills.

Both walk a sequence's pages by its row of the block table and keep a running softmax (flash
attention), so keys and values are read once and no scores are stored. All query heads that share a
KV head are computed together, so its keys are read once for all of them. A decode has a single row
and much to read: its context is divided into parallel splits, whose partial results a third kernel
joins (flash-decoding).

Shapes are fixed by the caller's buffers, and nothing is read back, so a call can be part of a CUDA
graph. Scores and sums are float32 for all tensor types.

Triton compiles a kernel again, for seconds, for each new combination of properties of its arguments.
So those that change from step to step (widths, and the alignment of parts of one tensor) are no such
properties, and the number of splits is a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from fairserve.engine.torch.page_pool import PAGE_TOKENS

_BLOCK_TOKENS = 64
"""Context tokens per iteration of a kernel: four pages."""
_LOG2_E = 1.4426950408889634


@triton.jit(do_not_specialize=["table_width"], do_not_specialize_on_alignment=["table", "lengths"])
def _decode_split(
    query, keys, values, table, lengths, partial, sums, maxima,
    scale_log2, heads, table_width,
    query_row, query_head, kv_slot, kv_head,
    PAGE: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr,
    HEAD: tl.constexpr, HEAD_COLUMNS: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute unnormalised output, sum and maximum of one row, KV head and split of the context."""
    row, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    # Splits of the row's own length, not of the table's width: most rows are shorter.
    split_tokens = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    start = split * split_tokens
    stop = tl.minimum(length, start + split_tokens)
    member, column = tl.arange(0, GROUP_ROWS), tl.arange(0, HEAD_COLUMNS)
    head = kv * GROUP + member
    inside = (member < GROUP)[:, None] & (column < HEAD)[None, :]
    q = tl.load(
        query + row * query_row + head[:, None] * query_head + column[None, :],
        mask=inside,
        other=0.0,
    )
    best = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    out = tl.zeros([GROUP_ROWS, HEAD_COLUMNS], tl.float32)
    for begin in range(start, stop, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        seen = token < stop
        page = tl.load(table + row * table_width + token // PAGE, mask=seen, other=0)
        slot = page.to(tl.int64) * PAGE + token % PAGE
        place = slot[:, None] * kv_slot + kv * kv_head + column[None, :]
        readable = seen[:, None] & (column < HEAD)[None, :]
        k = tl.load(keys + place, mask=readable, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        kept = tl.exp2(best - higher)
        weights = tl.exp2(scores - higher[:, None])
        v = tl.load(values + place, mask=readable, other=0.0)
        out = out * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        best = higher
    place = (row * heads + head) * SPLITS + split
    tl.store(partial + place[:, None] * HEAD + column[None, :], out, mask=inside)
    tl.store(sums + place, total, mask=member < GROUP)
    tl.store(maxima + place, best, mask=member < GROUP)


@triton.jit
def _join_splits(
    partial, sums, maxima, output, heads, output_row, output_head,
    HEAD: tl.constexpr, HEAD_COLUMNS: tl.constexpr, SPLITS: tl.constexpr, SPLIT_ROWS: tl.constexpr,
):  # fmt: skip
    """Add up the splits' outputs of one row and head, each weighted by its share of the softmax."""
    row, head = tl.program_id(0), tl.program_id(1)
    split, column = tl.arange(0, SPLIT_ROWS), tl.arange(0, HEAD_COLUMNS)
    place = (row * heads + head) * SPLITS + split
    there = split < SPLITS
    best = tl.load(maxima + place, mask=there, other=float("-inf"))
    # A split beyond the end of the context has neither weight nor a finite maximum.
    share = tl.where(best == float("-inf"), 0.0, tl.exp2(best - tl.max(best, 0)))
    total = tl.sum(tl.load(sums + place, mask=there, other=0.0) * share, 0)
    parts = tl.load(
        partial + place[:, None] * HEAD + column[None, :],
        mask=there[:, None] & (column < HEAD)[None, :],
        other=0.0,
    )
    out = tl.sum(parts * share[:, None], 0) / tl.maximum(total, 1e-30)
    tl.store(
        output + row * output_row + head * output_head + column,
        out.to(output.dtype.element_ty),
        mask=column < HEAD,
    )


@triton.jit(
    do_not_specialize=["table_width"],
    do_not_specialize_on_alignment=[
        "table", "tile_span", "tile_first", "span_start", "span_rows", "span_context"
    ],
)  # fmt: skip
def _prefill(
    query, keys, values, table, output, tile_span, tile_first, span_start, span_rows, span_context,
    scale_log2, table_width, query_row, query_head, kv_slot, kv_head, output_row, output_head,
    PAGE: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute one tile of query rows of one chunk, for one query head."""
    tile, head = tl.program_id(0), tl.program_id(1)
    span = tl.load(tile_span + tile)
    first = tl.load(tile_first + tile)
    start = tl.load(span_start + span)
    rows = tl.load(span_rows + span)
    context = tl.load(span_context + span)
    kv = head // GROUP
    row, column = first + tl.arange(0, ROWS), tl.arange(0, HEAD_COLUMNS)
    position = context - rows + row
    inside = (row < rows)[:, None] & (column < HEAD)[None, :]
    q = tl.load(
        query + (start + row)[:, None] * query_row + head * query_head + column[None, :],
        mask=inside,
        other=0.0,
    )
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, HEAD_COLUMNS], tl.float32)
    stop = tl.minimum(context, context - rows + first + ROWS)
    for begin in range(0, stop, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        seen = token < stop
        page = tl.load(table + span * table_width + token // PAGE, mask=seen, other=0)
        slot = page.to(tl.int64) * PAGE + token % PAGE
        place = slot[:, None] * kv_slot + kv * kv_head + column[None, :]
        readable = seen[:, None] & (column < HEAD)[None, :]
        k = tl.load(keys + place, mask=readable, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        visible = seen[None, :] & (token[None, :] <= position[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        kept = tl.exp2(best - higher)
        weights = tl.exp2(scores - higher[:, None])
        v = tl.load(values + place, mask=readable, other=0.0)
        out = out * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        best = higher
    out = out / total[:, None]
    tl.store(
        output + (start + row)[:, None] * output_row + head * output_head + column[None, :],
        out.to(output.dtype.element_ty),
        mask=inside,
    )


@dataclass(slots=True, eq=False)
class DecodeScratch:
    """Partial results of ``splits`` splits for up to ``rows`` rows; reused by all layers."""

    partial: torch.Tensor
    """[rows, heads, splits, head size], float32"""
    sums: torch.Tensor
    """[rows, heads, splits]"""
    maxima: torch.Tensor

    @classmethod
    def make(
        cls, rows: int, heads: int, head_size: int, splits: int, device: torch.device
    ) -> DecodeScratch:
        """Allocate uninitialised memory."""
        shape = (rows, heads, splits)
        return cls(
            torch.empty((*shape, head_size), dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
        )


def decode_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    output: torch.Tensor,
    scratch: DecodeScratch,
    scaling: float,
) -> None:
    """Compute attention from one row per sequence to its ``lengths[row]`` tokens, its own included.

    ``query`` and ``output`` [B, H, D]; ``keys`` and ``values`` [pages, 16, KV heads, D]; ``table``
    [B, P] int32; ``lengths`` [B] int32, each at least 1. Writes ``output`` and ``scratch``.
    """
    rows, heads, head_size = query.shape
    assert query.stride(2) == output.stride(2) == 1
    kv_heads = keys.shape[2]
    splits = scratch.sums.shape[2]
    columns = _padded(head_size)
    group = heads // kv_heads
    _decode_split[(rows, kv_heads, splits)](
        query, keys, values, table, lengths, scratch.partial, scratch.sums, scratch.maxima,
        scaling * _LOG2_E, heads, table.shape[1],
        query.stride(0), query.stride(1), keys.stride(1), keys.stride(2),
        PAGE=PAGE_TOKENS, GROUP=group, GROUP_ROWS=_padded(group),
        HEAD=head_size, HEAD_COLUMNS=columns, BLOCK=_BLOCK_TOKENS, SPLITS=splits,
    )  # fmt: skip
    _join_splits[(rows, heads)](
        scratch.partial, scratch.sums, scratch.maxima, output, heads,
        output.stride(0), output.stride(1),
        HEAD=head_size, HEAD_COLUMNS=columns, SPLITS=splits,
        SPLIT_ROWS=triton.next_power_of_2(splits),
    )  # fmt: skip


def _padded(size: int) -> int:
    """Return the size of a block's side: a power of two, and no less than a matrix product takes."""
    return max(16, 1 << (size - 1).bit_length())


TILE_ROWS = 64
"""Query rows per tile of a prefill."""


def prefill_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    tiles: torch.Tensor,
    spans: torch.Tensor,
    output: torch.Tensor,
    scaling: float,
) -> None:
    """Compute attention from the rows of each chunk to those up to them in the same sequence.

    ``query`` and ``output`` [T, H, D]; ``keys``, ``values`` as for decodes; ``table`` [S, P] int32;
    ``spans`` [3, S] int32: first row in ``query``, number of rows, tokens of context with them;
    ``tiles`` [2, N] int32: the span of each tile of :data:`TILE_ROWS` rows, and its first row in it.
    Writes the spans' rows of ``output``.
    """
    heads, head_size = query.shape[1:]
    assert query.stride(2) == output.stride(2) == 1
    _prefill[(tiles.shape[1], heads)](
        query, keys, values, table, output, tiles[0], tiles[1], spans[0], spans[1], spans[2],
        scaling * _LOG2_E, table.shape[1],
        query.stride(0), query.stride(1), keys.stride(1), keys.stride(2),
        output.stride(0), output.stride(1),
        PAGE=PAGE_TOKENS, GROUP=heads // keys.shape[2],
        HEAD=head_size, HEAD_COLUMNS=_padded(head_size),
        ROWS=TILE_ROWS, BLOCK=_BLOCK_TOKENS,
    )  # fmt: skip
