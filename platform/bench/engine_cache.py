"""The prefix cache of one engine, as its local scheduler sees it: a tree with a single worker.

Keys of a call are computed when it is registered, as an engine does it when a request comes in; the
scheduler matches them again whenever it hears that one of the blocks at the end of its match changed.
News of blocks are gathered until :meth:`tell`, so that what the scheduler makes of them can be timed
apart from the cache's own work.
"""

from __future__ import annotations

from collections.abc import Hashable

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
        self._news: list[tuple[Hashable, int]] = []
        self._changed: CacheNews | None = None

    def register(self, call: Call) -> None:
        """Compute the keys of a call that is going to wait."""
        self.locality.register(call)

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Cached tokens of a waiting call; where its match ends, and the block after that.

        The end is named by its node: one that is split stays the lower part and goes first, so that
        whoever watches it hears of it before the upper part can go.
        """
        keys = self.locality.keys(call.call_id)
        blocks, node = self._tree.find(keys)
        following = keys[blocks] if blocks < len(keys) else None
        if not blocks:
            return 0, None, following
        return min(blocks * self._block_tokens, call.prompt_tokens - 1), node, following

    def follow(self, changed: CacheNews) -> None:
        """Tell of the first blocks of what was stored, and of nodes that lost blocks or have gone."""
        news, block_tokens = self._news, self._block_tokens
        self._changed = changed

        def disappeared(node: Node, kept: int) -> None:
            # A node that has gone tells all, so that nobody waits for news of it any more.
            news.append((node, (node.start + kept) * block_tokens if kept else -1))

        self._tree.follow(
            lambda first: news.append((first, -1)),
            disappeared,
            lambda upper, lower: news.append((upper, -1)),
        )

    def tell(self) -> None:
        """Pass the news on."""
        if self._changed is not None:
            for name, beyond_tokens in self._news:
                self._changed((name,), beyond_tokens)
        self._news.clear()

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
