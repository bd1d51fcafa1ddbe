"""KV pool of one engine whose calls take blocks as they grow, as in vLLM.

A call enters if all tokens that it has so far fit, prompt and generated ones; nothing is reserved
for those that follow. Full blocks can be found by later calls, those of outputs included. A trace
contains no outputs: their keys are given with a call where they are known. All other blocks get keys
of their own, so they take room and are never found.

The last token of a sequence is always computed, and matches are of full blocks. With several
samples, the full blocks of the prompt are shared, and each sample has its own after them; those of
the first sample can be found.

Cost: O(blocks of the call) per entry, match and end; O(1) per new block.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field

from fairserve.engine.simulated.block_pool import BlockPool
from fairserve.scheduling.base import CacheListener, LocalCall
from fairserve.scheduling.locality.block_keys import BlockKeys

_FIRST_OWN_KEY = 1 << 63
"""First key of blocks that no other call can have; keys of traces are smaller."""


@dataclass(slots=True)
class _BlockTable:
    """Blocks of one call, waiting or running."""

    keys: array[int]
    """Keys of the first sample's blocks, as far as they are known."""
    prompt_blocks: int
    """Number of the prompt's full blocks, which the samples share."""
    samples: int
    tokens: int
    """Tokens of each sample that must be computed before it continues; prompt included."""
    blocks: list[int] = field(default_factory=list)
    """Held blocks, the deepest last; after the prompt one for each sample in turn."""
    stored: int = 0
    """Number of leading blocks of each sample that have a key."""

    def blocks_at(self, depth: int) -> int:
        """Return the number of blocks of all samples, each ``depth`` blocks long."""
        return depth + max(0, depth - self.prompt_blocks) * (self.samples - 1)


class PagedPool:
    """A :class:`~fairserve.engine.simulated.kv_pool.Pool` of blocks that calls take as they grow."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._pool = BlockPool(capacity_tokens // block_tokens)
        self._tables: dict[str, _BlockTable] = {}
        self._own_keys = itertools.count(_FIRST_OWN_KEY)

    @property
    def cache(self) -> PagedPool:
        """Return the prefix cache for the local scheduler."""
        return self

    @property
    def free_blocks(self) -> int:
        """Return the number of blocks that no running call holds."""
        return self._pool.free_blocks

    # --- prefix cache -----------------------------------------------------------------------------

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Return a waiting call's cached tokens, and the keys of its last and next block."""
        table = self._tables[call.call_id]
        found, most = len(self._hits(table)), self._most_hits(table)
        last = table.keys[found - 1] if found else None
        return found * self.block_tokens, last, table.keys[found] if found < most else None

    def follow(self, listener: CacheListener) -> None:
        """Notify ``listener`` of all keys stored or evicted from now on."""
        self._pool.changed = listener.changed

    def _most_hits(self, table: _BlockTable) -> int:
        most = min(len(table.keys), (table.tokens - 1) // self.block_tokens)
        return most if table.samples == 1 else min(most, table.prompt_blocks)

    def _hits(self, table: _BlockTable) -> list[int]:
        """Return the cached blocks of the longest prefix of a call."""
        hits = []
        for key in table.keys[: self._most_hits(table)]:
            block = self._pool.find(key)
            if block is None:
                break
            hits.append(block)
        return hits

    # --- calls ------------------------------------------------------------------------------------

    def register(
        self, call: LocalCall, samples: int, keys: BlockKeys, output_keys: BlockKeys
    ) -> None:
        """Add a waiting call with the keys of its prompt's full blocks and of those that follow."""
        prompt_blocks = call.prompt_tokens // self.block_tokens
        known = array("Q", keys[:prompt_blocks])
        if output_keys:
            known.extend(itertools.islice(self._own_keys, prompt_blocks - len(known)))
            known.extend(output_keys)
        self._tables[call.call_id] = _BlockTable(known, prompt_blocks, samples, call.prompt_tokens)

    def forget(self, call_id: str) -> None:
        """Remove a call, waiting or running."""
        self._pool.release(self._tables.pop(call_id).blocks[::-1])

    def enter(self, call: LocalCall, samples: int, output_tokens: int, step: int) -> int | None:
        """Add a call to the batch; return its cached tokens, or None if its tokens do not fit."""
        table = self._tables[call.call_id]
        hits = self._hits(table)
        depth = -(-table.tokens // self.block_tokens)
        missing = table.blocks_at(depth) - len(hits)
        resting = sum(map(self._pool.is_free, hits))
        if missing + resting > self._pool.free_blocks:
            return None
        self._pool.share(hits)
        table.blocks, table.stored = hits, len(hits)
        return len(hits) * self.block_tokens

    def missing_blocks(self, call_id: str, tokens: int) -> int:
        """Return the number of blocks that a running call lacks for this many tokens a sample."""
        table = self._tables[call_id]
        return max(0, table.blocks_at(-(-tokens // self.block_tokens)) - len(table.blocks))

    def grow(self, call_id: str, tokens: int) -> bool:
        """Take the blocks for this many tokens of each sample; return False if they do not fit."""
        missing = self.missing_blocks(call_id, tokens)
        if missing > self._pool.free_blocks:
            return False
        if missing:
            self._tables[call_id].blocks += self._pool.take(missing)
        return True

    def computed(self, call_id: str, tokens: int) -> None:
        """Record that the starting pass completes this many tokens of each sample."""
        table = self._tables[call_id]
        full = tokens // self.block_tokens
        if full > len(table.keys):
            table.keys.extend(itertools.islice(self._own_keys, full - len(table.keys)))
        for depth in range(table.stored, full):
            first = table.blocks_at(depth)
            self._pool.store(table.blocks[first], table.keys[depth])
            for block in table.blocks[first + 1 : table.blocks_at(depth + 1)]:
                self._pool.store(block, next(self._own_keys))
        table.stored = max(table.stored, full)

    def preempted(self, call_id: str, tokens: int) -> None:
        """Release the blocks of a call, whose samples have this many tokens each; it waits again."""
        table = self._tables[call_id]
        self._pool.release(table.blocks[::-1])
        table.blocks, table.stored, table.tokens = [], 0, tokens
