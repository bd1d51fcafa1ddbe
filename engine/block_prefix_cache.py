"""The prefix cache of one engine: a tree with a single worker, and the keys of the calls that are there.

Nothing is stored but which prefixes there are; matches are of full blocks, and at most all of a prompt
but its last token, which an engine always computes. It is what the simulator's engines have, and what
the queue before a server of another kind believes that server to have.
"""

from __future__ import annotations

from collections.abc import Hashable

from fairserve.scheduling.base import CacheListener, LocalCall
from fairserve.scheduling.block_keys import BlockKeys
from fairserve.scheduling.prefix_node import Node
from fairserve.scheduling.prefix_tree import PrefixTree

_HERE = "here"
"""The tree's one worker."""


class BlockPrefixCache:
    """A :class:`~fairserve.scheduling.base.PrefixCache`. O(nodes on the path) per operation."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._tree = PrefixTree()
        self._tree.add_worker(_HERE, capacity_tokens // block_tokens)
        self._keys: dict[str, BlockKeys] = {}

    @property
    def locked_tokens(self) -> int:
        """Tokens on the paths of running calls, which cannot be evicted."""
        return self._tree.locked_blocks(_HERE) * self.block_tokens

    def resize(self, capacity_tokens: int) -> None:
        """Evict down to so many tokens, as far as nothing is locked, and stay below from now on."""
        self._tree.resize(_HERE, max(0, capacity_tokens) // self.block_tokens)

    def register(self, call_id: str, keys: BlockKeys) -> None:
        """A call with these block keys is here."""
        self._keys[call_id] = keys

    def forget(self, call_id: str) -> None:
        """It has left."""
        del self._keys[call_id]

    def full_blocks(self, call_id: str) -> int:
        """Blocks of the prompt that can be cached at all."""
        return len(self._keys[call_id])

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Cached tokens of a waiting call; the node where its match ends, and the block after that."""
        keys = self._keys[call.call_id]
        blocks, node = self._tree.find(keys)
        following = keys[blocks] if blocks < len(keys) else None
        if not blocks:
            return 0, None, following
        return min(blocks * self.block_tokens, call.prompt_tokens - 1), node, following

    def follow(self, listener: CacheListener) -> None:
        """Tell of the first blocks of what is stored, and of nodes that change or go."""
        block_tokens = self.block_tokens

        def disappeared(node: Node, kept: int) -> None:
            listener.changed(node, (node.start + kept) * block_tokens if kept else -1)

        def renamed(node: Node, other: Node, depth: int) -> None:
            listener.renamed(node, other, depth * block_tokens)

        self._tree.follow(listener.changed, disappeared, renamed)

    def lock(self, call_id: str) -> Node:
        """Keep what is cached of a call's prompt; give the answer to :meth:`unlock`."""
        return self._tree.lock(self._keys[call_id], _HERE)

    def unlock(self, locked: Node) -> None:
        """Undo one :meth:`lock`."""
        self._tree.unlock(locked, _HERE)

    def store(self, call_id: str, blocks: int | None = None) -> None:
        """So many blocks of a call's prompt (None: all) are computed; older ones are evicted for it."""
        keys = self._keys[call_id]
        whole = blocks is None or blocks == len(keys)
        self._tree.insert(keys if whole else keys[:blocks], _HERE)
