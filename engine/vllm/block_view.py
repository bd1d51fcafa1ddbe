"""vLLM's prefix cache as a local scheduler sees it: matches, and events of stored and evicted blocks.

A block is named by its hash, which is chained over the whole prefix, so equal names mean equal
prefixes. The pool's methods that store and drop hashes are wrapped on the instance, so a waiting
request is matched again only after a block at the end of its match is stored or evicted.

It is exact for one group of full attention, vLLM's usual case: there a block is never evicted
before the blocks after it, since a request frees its blocks last one first. Weakness: with several
groups (sliding windows, Mamba) the match ends where all groups agree, and an eviction elsewhere on
the path is not noticed; a waiting request may keep its old place until an event of its own blocks.
Its charge is exact nevertheless, since it is read from vLLM on admission.

Cost: a look-up per matched block for a match; a few look-ups per block stored or evicted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import islice
from typing import Any

from fairserve.engine.vllm.surface import VllmRequest
from fairserve.scheduling.base import CacheListener, LocalCall

_GROUP_BYTES = 4
"""Number of bytes of the group number that vLLM appends to a block's hash."""
_FIRST_GROUP = bytes(_GROUP_BYTES)


class BlockView:
    """The :class:`~fairserve.scheduling.base.PrefixCache` over one KV cache manager."""

    def __init__(self, manager: Any, requests: Mapping[str, VllmRequest]) -> None:
        self._manager = manager
        self._pool = manager.block_pool
        self._coordinator = manager.coordinator
        self._requests = requests
        """Waiting requests by id."""
        managers = self._coordinator.single_type_managers
        self.is_chain = _is_chain(self._coordinator)
        """True for one group of full attention."""
        self.block_tokens: int = managers[0].block_size if managers else 1
        self._dropped = 1 if self.is_chain and managers[0].use_eagle else 0
        """Number of blocks at the end of a hit that are computed again (speculative decoding)."""
        self._found: dict[str, tuple[int, Hashable]] = {}
        """Number of cached blocks of a chain at the last match, and the name of the next one."""
        self.followed = False
        """True if a scheduler follows stored blocks."""
        self._watched: set[Hashable] = set()
        self.grew = False
        """True after a watched block was stored."""

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Return a request's match; see :class:`~fairserve.scheduling.base.PrefixCache`."""
        request = self._requests[call.call_id]
        hashes = request.block_hashes
        if self.is_chain:
            blocks, following = self._match_chain(request)
            tokens = max(0, blocks - self._dropped) * self.block_tokens
            return tokens, hashes[blocks - 1] if blocks else None, following
        if not self._manager.prefix_cache_lookup_enabled(request):
            return 0, None, None
        _, tokens, _ = self._coordinator.find_longest_cache_hit(hashes, request.num_tokens - 1)
        size = self._pool.hash_block_size
        blocks, most = tokens // size, min(len(hashes), (request.num_tokens - 1) // size)
        last = hashes[blocks - 1] if blocks else None
        return tokens, last, hashes[blocks] if blocks < most else None

    def most_reused_blocks(self, request: VllmRequest) -> int | None:
        """Return the most blocks that an admission can reuse; None if that requires a match."""
        found = self._found.get(request.request_id)
        if found is None:
            return None
        blocks, following = found
        if following is None or not self._is_cached(following):
            return blocks
        return None

    def forget(self, request_id: str) -> None:
        """Forget a request that has left the queue."""
        self._found.pop(request_id, None)

    def watch(self) -> None:
        """Reset ``grew``, which is set when a match of a waiting request may have become longer."""
        self._watched = {following for _, following in self._found.values()}
        self.grew = False

    def match_arrived(self, request: VllmRequest) -> None:
        """Match a request that arrived since, and watch its next block, too."""
        if self.is_chain:
            self._match_chain(request)
            self._watched.add(self._found[request.request_id][1])

    def _match_chain(self, request: VllmRequest) -> tuple[int, Hashable]:
        """Return and store the number of leading cached blocks, and the name of the next one."""
        if not self._manager.prefix_cache_lookup_enabled(request):
            self._found[request.request_id] = (0, None)
            return 0, None
        hashes = request.block_hashes
        most = min(len(hashes), (request.num_tokens - 1) // self.block_tokens)
        cached = self._pool.cached_block_hash_to_block.get_one_block
        blocks = 0
        for name in islice(hashes, most):
            if cached(name + _FIRST_GROUP) is None:
                break
            blocks += 1
        found = blocks, hashes[blocks] if blocks < most else None
        self._found[request.request_id] = found
        return found

    def _is_cached(self, name: Any) -> bool:
        return self._pool.cached_block_hash_to_block.get_one_block(name + _FIRST_GROUP) is not None

    def follow(self, listener: CacheListener) -> None:
        """Notify ``listener`` of every block that is stored or evicted from now on."""
        self.followed = True
        pool = self._pool
        insert, remove, reset = (
            pool._insert_block_hash,
            pool._remove_cached_block_hashes,
            pool.reset_prefix_cache,
        )

        def stored(key: bytes, *arguments: Any, **named: Any) -> None:
            insert(key, *arguments, **named)
            name = key[:-_GROUP_BYTES]
            listener.changed(name)
            if name in self._watched:
                self.grew = True

        def evicted(*arguments: Any) -> list[bytes]:
            keys: list[bytes] = remove(*arguments)
            cached = pool.cached_block_hash_to_block.get_one_block
            for key in keys:
                if cached(key) is None:  # the same prefix may be stored in another block, too
                    listener.changed(key[:-_GROUP_BYTES])
            return keys

        def cleared() -> bool:
            keys = list(pool.cached_block_hash_to_block._cache)
            done: bool = reset()
            if done:
                for key in keys:
                    listener.changed(key[:-_GROUP_BYTES])
            return done

        pool._insert_block_hash = stored
        pool._remove_cached_block_hashes = evicted
        pool.reset_prefix_cache = cleared


def _is_chain(coordinator: Any) -> bool:
    from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    managers = coordinator.single_type_managers
    return bool(
        type(coordinator) is UnitaryKVCacheCoordinator and type(managers[0]) is FullAttentionManager
    )
