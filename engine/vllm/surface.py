"""All names of vLLM that the plug-in uses, so that a new release can be checked against them.

vLLM calls its scheduler's interface "not public". These names are the same in 0.32 and 0.33;
:func:`check_surface` reports at start which of them a release lacks, instead of failing under
traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

TESTED = "0.32, 0.33"


class VllmRequest(Protocol):
    """A sequence (``vllm.v1.request.Request``)."""

    request_id: str
    status: Any
    sampling_params: Any
    structured_output_request: Any
    block_hashes: Sequence[bytes]
    """Hash of each full block of prompt and output, chained: equal hashes mean equal prefixes."""
    max_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_stale_output_tokens: int
    drop_stale_output: bool

    @property
    def num_tokens(self) -> int:
        """Return the number of prompt and output tokens so far."""
        ...


_BLOCK_POOL = (
    "_insert_block_hash",
    "_remove_cached_block_hashes",
    "cached_block_hash_to_block",
    "get_num_free_blocks",
    "reset_prefix_cache",
)
_CACHE_MANAGER = (
    "coordinator",
    "block_pool",
    "empty_kv_cache_blocks",
    "prefix_cache_lookup_enabled",
    "watermark_blocks",
)
_COORDINATOR = (
    "find_longest_cache_hit",
    "get_num_blocks_to_allocate",
    "single_type_managers",
    "scheduler_block_size",
)
_SCHEDULER = (
    "_free_request",
    "_is_blocked_waiting_status",
    "_update_after_schedule",
    "_update_request_with_output",
    "is_encoder_decoder",
    "kv_holding_waiting",
    "max_model_len",
    "max_num_active_reqs",
    "max_num_scheduled_tokens",
    "num_lookahead_tokens",
    "num_spec_tokens",
    "num_waiting_for_streaming_input",
    "policy",
    "running",
    "scheduler_config",
    "scheduler_reserve_full_isl",
    "waiting",
)


def check_surface(scheduler: Any) -> None:
    """Raise RuntimeError with the required names that this vLLM lacks."""
    manager = getattr(scheduler, "kv_cache_manager", None)
    parts = (
        ("the scheduler", scheduler, _SCHEDULER),
        ("the KV cache manager", manager, _CACHE_MANAGER),
        ("its coordinator", getattr(manager, "coordinator", None), _COORDINATOR),
        ("the block pool", getattr(manager, "block_pool", None), _BLOCK_POOL),
    )
    for part, thing, names in parts:
        lacking = [name for name in names if not hasattr(thing, name)]
        if lacking:
            raise RuntimeError(
                f"this vLLM is not one that the plug-in knows ({TESTED}): {part} lacks "
                + ", ".join(lacking)
            )
