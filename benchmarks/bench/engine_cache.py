"""Prefix cache of one engine, with delayed events.

Keys of a call are computed when it is registered, as in an engine on arrival; the scheduler matches
it again after a change of a block at the end of its match. Block events are collected until
:meth:`EngineCache.publish`, so that the scheduler's work on them can be timed apart from the
cache's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from fairserve.engine.block_prefix_cache import BlockPrefixCache
from fairserve.interactions.call import Call
from fairserve.scheduling.base import CacheListener
from fairserve.scheduling.locality.block_keys import BlockHasher

_BLOCK_TOKENS = 16


class EngineCache(BlockPrefixCache):
    """A :class:`~fairserve.scheduling.base.PrefixCache` with a bounded number of tokens."""

    def __init__(self, seed: int, capacity_tokens: int) -> None:
        super().__init__(capacity_tokens, _BLOCK_TOKENS)
        self._hasher = BlockHasher(seed, _BLOCK_TOKENS)
        self._gathered: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def hash_and_register(self, call: Call) -> None:
        """Compute the keys of a call that is about to wait."""
        self.register(call.call_id, self._hasher.keys(call.token_ids, call.salt))

    def follow(self, listener: CacheListener) -> None:
        """Subscribe as the base does; events are delayed until :meth:`publish`."""
        super().follow(_Gatherer(listener, self._gathered))

    def publish(self) -> None:
        """Publish the collected events."""
        for notify, arguments in self._gathered:
            notify(*arguments)
        self._gathered.clear()


class _Gatherer:
    def __init__(
        self,
        listener: CacheListener,
        gathered: list[tuple[Callable[..., None], tuple[object, ...]]],
    ) -> None:
        self._listener, self._gathered = listener, gathered

    def changed(self, name: Hashable, beyond_tokens: int = -1) -> None:
        self._gathered.append((self._listener.changed, (name, beyond_tokens)))

    def renamed(self, name: Hashable, other: Hashable, up_to_tokens: int) -> None:
        self._gathered.append((self._listener.renamed, (name, other, up_to_tokens)))
