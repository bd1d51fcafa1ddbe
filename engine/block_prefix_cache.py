"""Prefix cache of one engine: a tree with a single worker, and the block keys of its calls.

It stores only which prefixes are cached. Matches are of full blocks and never include the last
token of a prompt, which an engine always computes. The simulated engines use it as their cache, and
the queue in front of a foreign server as an estimate of that server's cache.
"""

from __future__ import annotations

from collections.abc import Hashable

from fairserve.scheduling.base import CacheListener, LocalCall
from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.locality.prefix_node import PrefixNode
from fairserve.scheduling.locality.prefix_tree import PrefixTree

_HERE = "here"
"""Id of the tree's only worker."""


class BlockPrefixCache:
    """A :class:`~fairserve.scheduling.base.PrefixCache`. O(nodes on the path) per operation."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._tree = PrefixTree()
        self._tree.add_worker(_HERE, capacity_tokens // block_tokens)
        self._keys: dict[str, BlockKeys] = {}

    @property
    def locked_tokens(self) -> int:
        """Return the tokens on the paths of running calls, which cannot be evicted."""
        return self._tree.locked_blocks(_HERE) * self.block_tokens

    def resize(self, capacity_tokens: int) -> None:
        """Set the capacity and evict unlocked blocks down to it."""
        self._tree.resize(_HERE, max(0, capacity_tokens) // self.block_tokens)

    def register(self, call_id: str, keys: BlockKeys) -> None:
        """Add a call with these block keys."""
        self._keys[call_id] = keys

    def forget(self, call_id: str) -> None:
        """Remove a call."""
        del self._keys[call_id]

    def full_blocks(self, call_id: str) -> int:
        """Return the number of the prompt's full blocks."""
        return len(self._keys[call_id])

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Return a waiting call's cached tokens, the node where its match ends, and the next block."""
        keys = self._keys[call.call_id]
        blocks, node = self._tree.find(keys)
        following = keys[blocks] if blocks < len(keys) else None
        if not blocks:
            return 0, None, following
        return min(blocks * self.block_tokens, call.prompt_tokens - 1), node, following

    def follow(self, listener: CacheListener) -> None:
        """Notify ``listener`` of stored first blocks, and of nodes that change or disappear."""
        block_tokens = self.block_tokens

        def disappeared(node: PrefixNode, kept: int) -> None:
            listener.changed(node, (node.start + kept) * block_tokens if kept else -1)

        def renamed(node: PrefixNode, other: PrefixNode, depth: int) -> None:
            listener.renamed(node, other, depth * block_tokens)

        self._tree.follow(listener.changed, disappeared, renamed)

    def lock(self, call_id: str) -> PrefixNode:
        """Lock the cached part of a call's prompt; pass the result to :meth:`unlock`."""
        return self._tree.lock(self._keys[call_id], _HERE)

    def unlock(self, locked: PrefixNode) -> None:
        """Undo one :meth:`lock`."""
        self._tree.unlock(locked, _HERE)

    def store(self, call_id: str, blocks: int | None = None) -> None:
        """Store the first computed blocks of a call's prompt (None: all), evicting older blocks."""
        keys = self._keys[call_id]
        whole = blocks is None or blocks == len(keys)
        self._tree.insert(keys if whole else keys[:blocks], _HERE)
