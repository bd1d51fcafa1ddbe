"""Attention over pages, plugged into transformers' models through its attention interface.

Every layer first stores the new keys and values in their pages, then each decode group and each
prefill chunk attends to its own pages. No mask function is registered under this name: it would
force a host synchronisation in every step.

Weakness: pages are gathered before they are attended to, so keys and values move three times. On
a GPU a kernel that reads pages in place is faster; on a CPU the forward's Python dominates.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as attend
from transformers import AttentionInterface

from fairserve.engine.torch.batch import DecodeGroup, PagedState, PrefillSpan

ATTENTION_NAME = "fairserve_paged"

_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Keyword arguments by which models ask for another kind of attention."""


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    paged: PagedState | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """One layer's attention: query [1, H, T, D], key and value [1, KV heads, T, D] -> [1, T, H, D].

    Writes the keys and values into the pages. Raises ValueError if the model asks for attention
    that differs from plain causal attention.
    """
    if paged is None:
        raise ValueError(f"{ATTENTION_NAME} attention was called without paged=")
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            raise ValueError(f"the model's attention uses {name}, which this engine does not have")
    layer: int = module.layer_idx  # type: ignore[assignment]
    paged.kv.write(layer, paged.write_slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    output = torch.empty_like(query[0].transpose(0, 1), memory_format=torch.contiguous_format)
    for group in paged.decodes:
        output[group.start : group.stop] = _decode(paged, layer, group, query, scaling)
    for span in paged.prefills:
        output[span.start : span.stop] = _prefill(paged, layer, span, query, key, value, scaling)
    return output[None], None


def _decode(
    paged: PagedState, layer: int, group: DecodeGroup, query: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    keys, values = paged.kv.read(layer, group.pages)
    batch, kv_heads, _, head_size = keys.shape
    # The query heads that share a KV head become query rows of that head: nothing is repeated.
    rows = query[0, :, group.start : group.stop].transpose(0, 1)
    grouped = rows.reshape(batch, kv_heads, -1, head_size)
    result = attend(grouped, keys, values, attn_mask=group.mask, scale=scaling)
    return result.reshape(batch, -1, head_size)


def _prefill(
    paged: PagedState,
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
        keys, values = paged.kv.read(layer, span.pages)
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


def register() -> None:
    """Make ``ATTENTION_NAME`` known to transformers; may be called again."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
