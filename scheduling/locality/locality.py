"""Believed contents of the prefix caches: the block keys of each call, and the tree of all workers.

The tree follows the cache events of workers that publish them. Router, feeder and overload detector
of a model pool share one object, so that they see the same matches. Keys are computed once per call
and dropped when it ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from typing import Any

from fairserve.interactions.call import Call
from fairserve.scheduling.locality.block_keys import BlockHasher, BlockKeys
from fairserve.scheduling.locality.prefix_tree import PrefixTree
from fairserve.scheduling.locality.reports import Reports
from fairserve.scheduling.locality.workers import Workers


class Locality:
    """The cluster's prefix caches as believed by the router."""

    def __init__(self, seed: int, block_tokens: int = 16) -> None:
        self._hasher = BlockHasher(seed, block_tokens)
        self.block_tokens = block_tokens
        """Tokens per block; read-only."""
        self.workers = Workers()
        self.tree = PrefixTree(self.workers)
        self.reports = Reports(self.tree)
        self._keys: dict[str, BlockKeys] = {}

    def add_worker(self, worker_id: str, kv_capacity_tokens: int) -> None:
        """Add a worker with an empty cache."""
        capacity_blocks = kv_capacity_tokens // self.block_tokens
        self.tree.add_worker(worker_id, capacity_blocks)
        self.reports.add_worker(worker_id, capacity_blocks)

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker and its cache."""
        self.reports.remove_worker(worker_id)
        self.tree.remove_worker(worker_id)

    def keys(self, call_id: str) -> BlockKeys:
        """Return the block keys of a registered call; empty for others."""
        return self._keys.get(call_id, ())

    def register(self, call: Call) -> None:
        """Compute the keys of a call; unregistered calls match 0 tokens."""
        given = call.block_keys
        if given is None:
            self._keys[call.call_id] = self._hasher.keys(call.token_ids, call.salt, call.adapter)
        else:
            self._keys[call.call_id] = given if isinstance(given, array) else array("Q", given)

    def forget(self, call_id: str) -> None:
        """Drop the keys of a call that ended."""
        self._keys.pop(call_id, None)

    def match(self, call: Call, mask: int) -> tuple[int, int]:
        """Return the longest match in tokens at any worker of ``mask``, and the mask of its holders.

        If nothing matches: 0 and all of ``mask`` (in Algorithm 2, G is then every worker).
        """
        blocks, node = self.tree.find(self._keys.get(call.call_id, ()))
        holders = node.mask & mask
        if blocks and not holders:
            blocks, holders = self.tree.match_at(node, blocks, mask)
        if not blocks:
            return 0, mask
        tokens, prompt_tokens = blocks * self.block_tokens, call.prompt_tokens
        return (tokens if tokens < prompt_tokens else max(0, prompt_tokens - 1)), holders

    def matched_tokens(self, call: Call, workers: Collection[str]) -> int:
        """Return the tokens of the longest match at any of these workers."""
        return self.match(call, self.workers.mask(workers))[0]

    def placed(self, call: Call, worker_id: str) -> None:
        """Record that the call's prompt will be computed on this worker."""
        keys = self._keys.get(call.call_id, ())
        self.tree.insert(keys, worker_id)
        self.reports.placed(call.call_id, worker_id, keys)

    def left(self, call: Call, worker_id: str, now_s: float) -> None:
        """Record that the call left this worker."""
        self.reports.left(call.call_id, worker_id, now_s)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; keys of live calls are recomputed on restore."""
        return {"tree": self.tree.snapshot(), "reports": self.reports.snapshot(now_s)}

    def restore(self, state: dict[str, Any], calls: Iterable[Call], now_s: float) -> None:
        """Replace the state by an earlier snapshot made with the same seed."""
        self.tree.restore(state["tree"])
        self._keys = {}
        for call in calls:
            self.register(call)
        self.reports.restore(state["reports"], self.keys, now_s)
