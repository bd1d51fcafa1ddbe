"""The prefix cache of one engine, as its local scheduler sees it: a tree with a single worker.

Keys of a call are computed when it is registered, as an engine does it when a request comes in; the
scheduler matches them again whenever it hears that one of the blocks at the end of its match changed.
News of blocks are gathered until :meth:`tell`, so that what the scheduler makes of them can be timed
apart from the cache's own work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from fairserve.interactions.call import Call
from fairserve.scheduling.base import CacheNews, LocalCall
from fairserve.scheduling.locality import Locality
from fairserve.scheduling.prefix_node import Node

WORKER = "worker"


class EngineCache:
    """A :class:`~fairserve.scheduling.base.PrefixCache` with a bounded number of tokens."""

    def __init__(self, seed: int, capacity_tokens: int) -> None:
        self.locality = Locality(seed)
        self.locality.add_worker(WORKER, capacity_tokens)
        self._tree = self.locality.tree
        self._block_tokens = self.locality.block_tokens
        self._gathered: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def register(self, call: Call) -> None:
        """Compute the keys of a call that is going to wait."""
        self.locality.register(call)

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Cached tokens of a waiting call; the node where its match ends, and the block after that."""
        keys = self.locality.keys(call.call_id)
        blocks, node = self._tree.find(keys)
        following = keys[blocks] if blocks < len(keys) else None
        if not blocks:
            return 0, None, following
        return min(blocks * self._block_tokens, call.prompt_tokens - 1), node, following

    def follow(self, news: CacheNews) -> None:
        """Tell of the first blocks of what was stored, and of nodes that changed or have gone."""
        gathered, block_tokens = self._gathered, self._block_tokens

        def disappeared(node: Node, kept: int) -> None:
            beyond_tokens = (node.start + kept) * block_tokens if kept else -1
            gathered.append((news.changed, (node, beyond_tokens)))

        def renamed(node: Node, other: Node, depth: int) -> None:
            gathered.append((news.renamed, (node, other, depth * block_tokens)))

        self._tree.follow(
            lambda first: gathered.append((news.changed, (first,))), disappeared, renamed
        )

    def tell(self) -> None:
        """Pass the news on."""
        for tell, what in self._gathered:
            tell(*what)
        self._gathered.clear()

    def lock(self, call: LocalCall) -> Node:
        """Keep what a call that is admitted shares."""
        return self._tree.lock(self.locality.keys(call.call_id), WORKER)

    def store(self, call: LocalCall) -> None:
        """The prompt of a running call was computed; older blocks are evicted for it."""
        self._tree.insert(self.locality.keys(call.call_id), WORKER)

    def release(self, call: LocalCall, locked: Node) -> None:
        """The call ended."""
        self._tree.unlock(locked, WORKER)
        self.locality.forget(call.call_id)
