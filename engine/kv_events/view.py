"""A worker's prefix cache as described by its KV events, in the platform's block keys. No I/O.

A worker names its blocks by its own hashes; the router names prefixes by the keys of
:class:`~fairserve.scheduling.locality.block_keys.BlockHasher`. A block's key follows from its
parent's key, its position and its tokens, so the view keeps these for every block of the worker,
and converts each batch into events for the dispatcher. The worker's blocks may be multiples or
parts of the platform's.

Blocks of a LoRA adapter have keys of their own, as its calls have. Blocks without a key are skipped, so
the view never claims more than the worker has. These are blocks after an unknown one, of an adapter that
has only a number, with images, in memory other than the device's, or beyond the worker's capacity.
Memory: about 250 bytes per block.

Weakness: events name an adapter, not its weights. After another adapter has got the name, the view has
the old one's blocks until they are evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairserve.engine.kv_events.dialect import (
    DEVICE_MEDIUM,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KvEvent,
)
from fairserve.scheduling.events import (
    CacheReport,
    WorkerCached,
    WorkerCacheReset,
    WorkerEvicted,
)
from fairserve.scheduling.locality.block_keys import BlockHasher

_SLACK = 1.25
"""Factor on a worker's capacity beyond which blocks are skipped."""


class _Block(NamedTuple):
    end: int
    """Number of tokens of the prefix that ends with the block."""
    key: int
    """Key of that prefix."""
    boundary: int | None
    """Key at the last end of a platform block within the prefix; None if there is none."""
    inside: tuple[int, ...]
    """Keys of the platform blocks that end inside the block, before its end."""
    parent: BlockHash | None
    """Previous block, if both are parts of one platform block."""
    start: int | None
    """The ``boundary`` of the block before."""


class KvView:
    """Blocks of one worker. ``capacity_tokens`` bounds them."""

    def __init__(self, worker_id: str, hasher: BlockHasher, capacity_tokens: int) -> None:
        self._worker_id = worker_id
        self._hasher = hasher
        self._capacity_tokens = capacity_tokens
        self._blocks: dict[BlockHash, _Block] = {}
        self._below: dict[BlockHash, set[BlockHash]] = {}
        """Blocks that follow a block ending inside a platform block, and are removed with it."""
        self.left_out = 0
        """Number of stored blocks without a key."""

    def __len__(self) -> int:
        """Return the number of the worker's blocks that have a key."""
        return len(self._blocks)

    def keys(self) -> set[int]:
        """Return the platform's keys of all blocks that the worker has; O(blocks)."""
        return {key for name in self._blocks for key in self._keys(name)}

    def contents(self) -> list[WorkerCached]:
        """Return events that store all blocks of the view in an empty cache; O(blocks)."""
        chains: list[tuple[int | None, list[int]]] = []
        for name, block in self._blocks.items():
            keys = self._keys(name)
            if chains and block.start == chains[-1][1][-1]:
                chains[-1][1].extend(keys)
            elif keys:
                chains.append((block.start, keys))
        return [WorkerCached(self._worker_id, start, tuple(keys)) for start, keys in chains]

    def begin(self, *, complete: bool) -> list[CacheReport]:
        """Drop all blocks; see :class:`~fairserve.scheduling.events.WorkerCacheReset`."""
        self._blocks.clear()
        self._below.clear()
        return [WorkerCacheReset(self._worker_id, complete)]

    def apply(self, events: Sequence[KvEvent]) -> list[CacheReport]:
        """Apply a batch and return its changes in the platform's keys, in order."""
        reports: list[CacheReport] = []
        for event in events:
            if isinstance(event, AllBlocksCleared):
                reports += self.begin(complete=True)
            elif event.medium not in (None, DEVICE_MEDIUM) or event.group_idx not in (None, 0):
                continue
            elif isinstance(event, BlockRemoved):
                keys = [key for name in event.block_hashes for key in self._remove(name)]
                if keys:
                    reports.append(WorkerEvicted(self._worker_id, tuple(keys)))
            else:
                reports += self._store(event)
        return reports

    # --- steps ------------------------------------------------------------------------------------

    def _store(self, event: BlockStored) -> list[CacheReport]:
        size, ours = event.block_size, self._hasher.block_tokens
        above = self._above(event)
        plain = _plain_blocks(event)
        room = int(_SLACK * self._capacity_tokens) // size - len(self._blocks)
        count = 0 if above is None or (size % ours and ours % size) else min(plain, max(0, room))
        self.left_out += len(event.block_hashes) - count
        if above is None or not count:
            return []
        parent, start = event.parent_block_hash, above.boundary
        tokens = np.asarray(event.token_ids[: count * size], dtype=np.uint32)
        step = min(size, ours)
        keys = self._hasher.extend(above.key, above.end, tokens, step)
        end, boundary, stored = above.end, start, []
        parts = size // step
        reports = self._replace(event.block_hashes, keys[parts - 1 :: parts])
        if parent is not None and parent not in self._blocks:
            self.left_out += count
            return reports
        for index, name in enumerate(event.block_hashes[:count]):
            end, before = end + size, boundary
            own = keys[index * parts : (index + 1) * parts]
            if end % ours == 0:
                boundary = own[-1]
                stored += own
            whole = parent if (end - size) % ours else None
            if whole is not None:
                self._below.setdefault(whole, set()).add(name)
            self._blocks[name] = _Block(end, own[-1], boundary, tuple(own[:-1]), whole, before)
            parent = name
        if stored:
            reports.append(WorkerCached(self._worker_id, start, tuple(stored)))
        return reports

    def _replace(self, names: Sequence[BlockHash], keys: Sequence[int]) -> list[CacheReport]:
        """Drop blocks whose hash now names another prefix: no later event would remove them."""
        gone: list[int] = []
        for name, key in zip(names, keys, strict=False):
            known = self._blocks.get(name)
            if known is not None and known.key != key:
                gone += self._remove(name)
        return [WorkerEvicted(self._worker_id, tuple(gone))] if gone else []

    def _above(self, event: BlockStored) -> _Block | None:
        """Return the block that precedes stored blocks; None if it is unknown or has no key."""
        adapter = event.lora_name or ""
        if event.lora_id is not None and not adapter:
            return None
        if event.parent_block_hash is not None:
            return self._blocks.get(event.parent_block_hash)
        salt = _own_extra(event, 0) or [""]
        if len(salt) > 1 or not isinstance(salt[0], str):
            return None
        return _Block(0, self._hasher.start(salt[0], adapter), None, (), None, None)

    def _remove(self, name: BlockHash) -> list[int]:
        """Drop a block and those that have no key without it; return the removed keys."""
        gone = self._keys(name)
        block = self._blocks.pop(name, None)
        if block is not None and block.parent in self._below:
            self._below[block.parent].discard(name)
        for child in self._below.pop(name, ()):
            gone += self._remove(child)
        return gone

    def _keys(self, name: BlockHash) -> list[int]:
        block = self._blocks.get(name)
        if block is None:
            return []
        if block.end % self._hasher.block_tokens:
            return list(block.inside)
        return [*block.inside, block.key]


def _plain_blocks(event: BlockStored) -> int:
    """Return the number of leading blocks identified by tokens, adapter and salt alone."""
    blocks = len(event.block_hashes)
    if event.extra_keys is None:
        return blocks
    first = event.parent_block_hash is None
    return next((index for index in range(first, blocks) if _own_extra(event, index)), blocks)


def _own_extra(event: BlockStored, index: int) -> list[Any]:
    """Return the extra keys of a block without the adapter's name, which is first in each."""
    extra = (event.extra_keys[index] if event.extra_keys else None) or []
    return extra[1:] if extra and extra[0] == event.lora_name else extra
