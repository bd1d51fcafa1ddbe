"""Compares the blocks that a waiting request needs with the free ones.

vLLM's admission loop ends at the first allocation that fails, whereas DLPM skips the call. So the
queue offers only requests that fit by the loop's rule (``KVCacheManager.allocate_slots``): the
whole prompt and the output before a preemption, less cached tokens; unused cached blocks count as
taken from the free ones; the watermark stays free while any request runs. If vLLM reserves no more
than the next chunk (``scheduler_reserve_full_isl`` off), the largest chunk of a step counts.

Cost: O(1) if the bounds decide, otherwise one match. Weakness: it ignores blocks held back by an
external cache (a KV connector), and limits other than blocks; vLLM skips such a request itself, or
ends its pass there.
"""

from __future__ import annotations

from typing import Any

from fairserve.engine.vllm.block_view import BlockView
from fairserve.engine.vllm.surface import VllmRequest


class BlockRoom:
    """Capacity of one scheduler's blocks. Changes nothing."""

    def __init__(self, scheduler: Any, view: BlockView) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._view = view
        config = scheduler.scheduler_config
        self._largest_chunk: int | None = None
        if not scheduler.scheduler_reserve_full_isl:
            limit = config.long_prefill_token_threshold
            chunk: int = scheduler.max_num_scheduled_tokens
            self._largest_chunk = min(chunk, limit) if limit > 0 else chunk

    def free_blocks(self) -> int:
        """Return the number of blocks that an admission may take now."""
        free: int = self._manager.block_pool.get_num_free_blocks()
        if self._scheduler.running:
            free -= self._manager.watermark_blocks
        return free

    def fits(self, request: VllmRequest) -> bool:
        """Return whether an allocation for the request would succeed now."""
        free = self.free_blocks()
        if self._view.is_chain and self._largest_chunk is None:
            tokens = self._tokens(request, 0)
            if -(-tokens // self._view.block_tokens) <= free:
                return True
            if self.least_blocks(request) > free:
                return False
        return self._needed_blocks(request) <= free

    def least_blocks(self, request: VllmRequest) -> int:
        """Return the minimum free blocks to fit, until the next block of its match is stored."""
        reused = None
        if self._view.is_chain and self._largest_chunk is None:
            reused = self._view.most_reused_blocks(request)
        if reused is None:
            return 1
        tokens = self._tokens(request, 0)
        return max(1, -(-tokens // self._view.block_tokens) - reused)

    def _tokens(self, request: VllmRequest, hit_tokens: int) -> int:
        """Return the number of slots that are taken on admission."""
        scheduler = self._scheduler
        tokens = request.num_tokens
        if self._largest_chunk is not None:
            tokens = min(tokens, hit_tokens + self._largest_chunk)
        slots: int = min(tokens + scheduler.num_lookahead_tokens, scheduler.max_model_len)
        return slots

    def _needed_blocks(self, request: VllmRequest) -> int:
        """Return the number of needed blocks, by vLLM's own count."""
        manager, scheduler = self._manager, self._scheduler
        blocks, hit_tokens = manager.empty_kv_cache_blocks.blocks, 0
        if manager.prefix_cache_lookup_enabled(request):
            blocks, hit_tokens, _ = manager.coordinator.find_longest_cache_hit(
                request.block_hashes, request.num_tokens - 1
            )
        slots = self._tokens(request, hit_tokens)
        needed: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=slots,
            new_computed_blocks=blocks,
            num_encoder_tokens=_encoder_tokens(request) if scheduler.is_encoder_decoder else 0,
            total_computed_tokens=hit_tokens,
            num_local_computed_tokens=hit_tokens,
            num_tokens_main_model=max(1, slots - scheduler.num_lookahead_tokens),
            apply_admission_cap=self._largest_chunk is None,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return needed


def _encoder_tokens(request: Any) -> int:
    return sum(request.get_num_encoder_embeds(each) for each in range(request.num_encoder_inputs))
