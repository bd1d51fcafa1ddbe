"""A cheap test for preemptions in the next step.

It is an upper bound: it may be True although blocks suffice, and is never False if they do not.
"""

from __future__ import annotations

from typing import Any


def may_run_short(scheduler: Any) -> bool:
    """Return whether running requests may need more blocks in the next step than are free.

    O(1) while there are plenty of free blocks, otherwise O(running).
    """
    manager = scheduler.kv_cache_manager
    managers = manager.coordinator.single_type_managers
    free: int = manager.block_pool.get_num_free_blocks()
    running: list[Any] = scheduler.running
    budget: int = scheduler.max_num_scheduled_tokens
    lookahead: int = scheduler.num_lookahead_tokens
    most = sum(_blocks(budget + lookahead * len(running), each) + len(running) for each in managers)
    if most <= free:
        return False
    needed = 0
    for each in managers:
        held = each.req_to_blocks
        for request in running:
            tokens = request.num_tokens_with_spec + request.num_output_placeholders
            tokens = min(tokens, request.num_computed_tokens + budget) + lookahead
            blocks = _blocks(tokens, each) - len(held.get(request.request_id, ()))
            needed += max(0, blocks)
    return needed > free


def _blocks(tokens: int, manager: Any) -> int:
    size: int = manager.block_size
    return -(-tokens // size)
