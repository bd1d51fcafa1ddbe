"""KV pool of one engine: tokens held by single calls, and the prefix cache in the rest.

A full block of a prompt belongs to its call until a pass over it begins. From then on it is in the
prefix cache, locked while a call on its path runs. Calls that enter later share it, already in the
same pass, as in engines that hash blocks when they schedule them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fairserve.engine.block_prefix_cache import BlockPrefixCache
from fairserve.engine.simulated.room import PoolRoom, ReservedRoom
from fairserve.scheduling.base import LocalCall, PrefixCache
from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.locality.prefix_node import PrefixNode


class Pool(Protocol):
    """A pool: calls register, enter if they fit, share computed blocks, and leave."""

    @property
    def cache(self) -> PrefixCache:
        """Return the prefix cache for the local scheduler, which only reads it."""
        ...

    def register(
        self, call: LocalCall, samples: int, keys: BlockKeys, output_keys: BlockKeys
    ) -> None:
        """Add a waiting call with the keys of its prompt's full blocks and of those that follow."""
        ...

    def forget(self, call_id: str) -> None:
        """Remove a call, waiting or running."""
        ...

    def enter(self, call: LocalCall, samples: int, output_tokens: int, step: int) -> int | None:
        """Add a call to the batch; return its cached tokens, or None if it does not fit."""
        ...

    def computed(self, call_id: str, tokens: int) -> None:
        """Record that the starting pass completes this many tokens, which are now shared."""
        ...


@dataclass(slots=True)
class _Holding:
    """Tokens of one running call."""

    shared_tokens: int
    """Tokens of its prompt that are in the prefix cache."""
    locked: PrefixNode | None


class KvPool:
    """A :class:`Pool` that reserves room for the whole output of a call, and caches no outputs."""

    def __init__(
        self, capacity_tokens: int, block_tokens: int, room: PoolRoom | None = None
    ) -> None:
        """Create an empty pool. With a given ``room``, nothing is cached."""
        self._caching = room is None
        self._room: PoolRoom = ReservedRoom(capacity_tokens) if room is None else room
        self._cache = BlockPrefixCache(capacity_tokens, block_tokens)
        self._held: dict[str, _Holding] = {}

    @property
    def cache(self) -> BlockPrefixCache:
        """Return the prefix cache for the local scheduler, which only reads it."""
        return self._cache

    def register(
        self, call: LocalCall, samples: int, keys: BlockKeys, output_keys: BlockKeys
    ) -> None:
        """Add a waiting call; ``keys`` are those of its prompt's full blocks."""
        self.cache.register(call.call_id, keys if self._caching else ())

    def forget(self, call_id: str) -> None:
        """Remove a call, waiting or running."""
        self.cache.forget(call_id)
        holding = self._held.pop(call_id, None)
        if holding is not None:
            if holding.locked is not None:
                self.cache.unlock(holding.locked)
            self._room.leave(call_id)
            self.cache.resize(self._room.for_cache())

    def enter(self, call: LocalCall, samples: int, output_tokens: int, step: int) -> int | None:
        """Add a call to the batch; return its cached prompt tokens, or None if it does not fit."""
        cached, _, _ = self.cache.match(call)
        locked = self.cache.lock(call.call_id) if cached else None
        held = call.prompt_tokens - cached + samples  # the prompt's pass generates the first tokens
        left = output_tokens - 1
        if not self._room.fits(held, left, samples, self.cache.locked_tokens, step):
            if locked is not None:
                self.cache.unlock(locked)
            return None
        self._room.enter(call.call_id, held, left, samples, step)
        self.cache.resize(self._room.for_cache())
        self._held[call.call_id] = _Holding(cached, locked)
        return cached

    def computed(self, call_id: str, tokens: int) -> None:
        """Record that the starting pass completes this many prompt tokens, which are now shared."""
        holding = self._held[call_id]
        blocks = min(tokens // self.cache.block_tokens, self.cache.full_blocks(call_id))
        shared_tokens = blocks * self.cache.block_tokens
        if shared_tokens <= holding.shared_tokens:
            return
        self._room.shrink(call_id, shared_tokens - holding.shared_tokens)
        holding.shared_tokens = shared_tokens
        self.cache.resize(self._room.for_cache())
        self.cache.store(call_id, blocks)
        before, holding.locked = holding.locked, self.cache.lock(call_id)
        if before is not None:
            self.cache.unlock(before)
