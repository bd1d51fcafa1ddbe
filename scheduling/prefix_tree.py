"""What the router believes each worker has cached: a prefix tree over blocks of tokens.

A prefix is named by one 64-bit hash per block boundary, and hashes are chained: equal hash means
equal whole prefix. So the tree needs no edges: a map from hash to a bit mask of workers, and the
longest match by binary search over the block boundaries of a prompt (if a worker has block k it has
all before it, because each worker's blocks are evicted leaf first).

The hash is multilinear modulo 2^64: the sum over positions of (token + 1) * coefficient, with secret
random coefficients per position, so that crafted prompts collide with probability 2^-47 at most
(tokens below 2^18) and one tenant cannot send its calls onto another's match. A salt adds a secret
offset. A match here only chooses a worker; engines compare tokens.

Each worker's set is bounded by its KV capacity and forgets the least recently used, until the
worker's own news replaces this guess. Cost per call: one pass over the tokens in numpy, O(log blocks)
map look-ups for a match, O(blocks) map updates for an insertion.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fairserve.interactions.call import TokenIds

BlockKeys = Sequence[int]
"""Chained hashes of the full blocks of a prompt, one per block."""

KeyListener = Callable[[int], None]

_COEFFICIENT_CHUNK = 16_384


class BlockHasher:
    """Turns token ids into block keys. Same seed, same keys; keep the seed secret."""

    def __init__(self, seed: int, block_tokens: int = 16) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens is {block_tokens}; allowed: 1 or more")
        self.block_tokens = block_tokens
        self._seed = seed
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._coefficients: npt.NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def keys(self, token_ids: TokenIds, salt: str = "") -> list[int]:
        """One key per full block. ``token_ids`` is one-dimensional."""
        blocks = len(token_ids) // self.block_tokens
        if blocks == 0:
            return []
        used = blocks * self.block_tokens
        while len(self._coefficients) < used:
            more = self._generator.integers(
                0, 2**64, size=_COEFFICIENT_CHUNK, dtype=np.uint64, endpoint=False
            )
            self._coefficients = np.concatenate([self._coefficients, more])
        terms = (token_ids[:used].astype(np.uint64) + np.uint64(1)) * self._coefficients[:used]
        sums = np.add.reduceat(terms, np.arange(0, used, self.block_tokens))
        keys = np.cumsum(sums, dtype=np.uint64)
        if salt:
            digest = hashlib.blake2b(
                salt.encode(), key=self._seed.to_bytes(32, "big", signed=True), digest_size=8
            ).digest()
            keys = keys + np.uint64(int.from_bytes(digest, "big"))
        result: list[int] = keys.tolist()
        return result


class PrefixTree:
    """Block keys -> workers. Worker slots are small integers, reused after removal."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._slots: dict[str, int] = {}
        self._held: dict[int, OrderedDict[int, None]] = {}
        self._capacity: dict[int, int] = {}
        self._appeared: list[KeyListener] = []
        self._disappeared: list[KeyListener] = []

    def follow(self, appeared: KeyListener, disappeared: KeyListener) -> None:
        """Call these when a block gets its first holder, and when it has lost its last one.

        Blocks of one path appear leaf first, so who watches for the next block of a match finds the
        deeper ones there, too.
        """
        self._appeared.append(appeared)
        self._disappeared.append(disappeared)

    def __len__(self) -> int:
        """Distinct blocks believed to be cached somewhere."""
        return len(self._masks)

    def add_worker(self, worker_id: str, capacity_blocks: int) -> None:
        """A worker joins with an empty cache. Raises ValueError if it is there already."""
        if worker_id in self._slots:
            raise ValueError(f"worker {worker_id!r} is in the tree already")
        slot = 0
        while slot in self._held:
            slot += 1
        self._slots[worker_id] = slot
        self._held[slot] = OrderedDict()
        self._capacity[slot] = max(1, capacity_blocks)

    def remove_worker(self, worker_id: str) -> None:
        """Forget everything about a worker; unknown workers are ignored."""
        slot = self._slots.pop(worker_id, None)
        if slot is None:
            return
        for key in self._held.pop(slot):
            self._clear(key, slot)
        del self._capacity[slot]

    def mask(self, workers: Sequence[str]) -> int:
        """The bit mask of some workers; unknown ones are left out."""
        mask = 0
        for worker in workers:
            slot = self._slots.get(worker)
            if slot is not None:
                mask |= 1 << slot
        return mask

    def match(self, keys: BlockKeys, mask: int) -> tuple[int, int]:
        """Blocks of the longest match at any worker of ``mask``, and the mask of those with it."""
        masks = self._masks
        low, high, found = 0, len(keys), 0
        while low < high:  # keys[:low] match, keys[:high + 1] do not
            middle = (low + high) // 2
            holders = masks.get(keys[middle], 0) & mask
            if holders:
                low, found = middle + 1, holders
            else:
                high = middle
        return low, found

    def holders(self, key: int) -> int:
        """The mask of the workers that have a block; 0 if none has."""
        return self._masks.get(key, 0)

    def holds(self, worker_id: str, mask: int) -> bool:
        """Whether the worker is in the mask."""
        slot = self._slots.get(worker_id)
        return slot is not None and bool(mask >> slot & 1)

    def insert(self, keys: BlockKeys, worker_id: str) -> None:
        """The worker has, or will soon have, these blocks. Mutates its recency order."""
        slot = self._slots.get(worker_id)
        if slot is None:
            return
        held, masks, bit = self._held[slot], self._masks, 1 << slot
        for key in reversed(keys):  # the leaf first, so that parents are always more recent
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = None
                before = masks.get(key, 0)
                masks[key] = before | bit
                if not before:
                    for appeared in self._appeared:
                        appeared(key)
        for _ in range(len(held) - self._capacity[slot]):
            key, _ = held.popitem(last=False)
            self._clear(key, slot)

    def evict(self, keys: BlockKeys, worker_id: str) -> None:
        """The worker says that it dropped these blocks; unknown ones are ignored."""
        slot = self._slots.get(worker_id)
        if slot is None:
            return
        held = self._held[slot]
        for key in keys:
            if key in held:
                del held[key]
                self._clear(key, slot)

    def _clear(self, key: int, slot: int) -> None:
        mask = self._masks[key] & ~(1 << slot)
        if mask:
            self._masks[key] = mask
        else:
            del self._masks[key]
            for disappeared in self._disappeared:
                disappeared(key)

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values: per worker its blocks, least recently used first."""
        return {
            worker: {"slot": slot, "capacity": self._capacity[slot], "held": list(self._held[slot])}
            for worker, slot in self._slots.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._masks, self._slots, self._held, self._capacity = {}, {}, {}, {}
        for worker, plain in state.items():
            slot = plain["slot"]
            self._slots[worker] = slot
            self._capacity[slot] = plain["capacity"]
            self._held[slot] = OrderedDict.fromkeys(plain["held"])
            for key in plain["held"]:
                self._masks[key] = self._masks.get(key, 0) | 1 << slot
