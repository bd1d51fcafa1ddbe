"""Attention over pages, plugged into transformers' models through its attention interface.

Every layer first stores the new keys and values in their pages, then attends by the step's plan. No
mask function is registered under this name, since it would force a host synchronisation in every
step.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import torch
from transformers import AttentionInterface

from fairserve.engine.torch.batch import PagedState, Planner
from fairserve.engine.torch.gather_attention import GatherPlan

_log = logging.getLogger(__name__)

ATTENTION_NAME = "fairserve_paged"

_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Keyword arguments of models that need another kind of attention."""


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
    """Attend in one layer: query [1, H, T, D], key and value [1, KV heads, T, D] -> [1, T, H, D].

    Writes the keys and values into the pages. Raises ValueError if the model asks for attention
    that differs from plain causal attention.
    """
    if paged is None:
        raise ValueError(f"{ATTENTION_NAME} attention was called without paged=")
    for name in _UNSUPPORTED:
        if options.get(name) is not None:
            raise ValueError(f"the model's attention uses {name}, which this engine does not have")
    layer: int = module.layer_idx  # type: ignore[assignment]
    written = slice(len(paged.write_slots))
    keys, values = key[0].transpose(0, 1)[written], value[0].transpose(0, 1)[written]
    paged.kv.write(layer, paged.write_slots, keys, values)
    return paged.plan.attend(layer, query, key, value, scaling)[None], None


def register() -> None:
    """Register ``ATTENTION_NAME`` with transformers; may be called again."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)


def planner_for(device: torch.device) -> Planner:
    """Return kernels that read pages in place on a GPU with Triton; otherwise plain torch."""
    if device.type != "cuda":
        return GatherPlan
    if importlib.util.find_spec("triton") is None:
        _log.warning(
            "triton is not installed: attention gathers pages, which is several times slower"
        )
        return GatherPlan
    from fairserve.engine.torch.kernel_attention import KernelPlan

    return KernelPlan.of
