"""KV blocks of one engine, as vLLM keeps them: reference counts, and one list of free blocks.

A full block has a key and can be found by it. It stays findable when its last call leaves, until
the block is taken for other tokens. Free blocks are taken from the head of the list. Released
blocks with a key are appended in the order given, those without a key are prepended, as in
``BlockPool.free_blocks`` of vLLM 0.32. Equal blocks that were computed twice are both kept.

Cost: O(1) per block; with equal blocks, O(copies).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


def _ignore(key: int) -> None:
    """Do nothing."""


class BlockPool:
    """A pool of blocks, numbered from 0."""

    def __init__(self, blocks: int) -> None:
        self._keys: list[int | None] = [None] * blocks
        self._references = [0] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        """Blocks without references; the first one is taken next."""
        self._found: dict[int, int] = {}
        """Block by key; of equal blocks the first."""
        self._copies: dict[int, list[int]] = {}
        """Other blocks of a key, the oldest first."""
        self.changed: Callable[[int], None] = _ignore
        """Listener for keys that can be found from now on, or no longer."""

    @property
    def free_blocks(self) -> int:
        """Return the number of blocks without references."""
        return len(self._free)

    def find(self, key: int) -> int | None:
        """Return the block of a key; None if there is none."""
        return self._found.get(key)

    def is_free(self, block: int) -> bool:
        """Return whether no call holds a block."""
        return not self._references[block]

    def take(self, count: int) -> list[int]:
        """Return free blocks with one reference each, and evict what they held.

        Raises KeyError if there are fewer.
        """
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._references[block] = 1
            if self._keys[block] is not None:
                self._evict(block)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to found blocks."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def store(self, block: int, key: int) -> None:
        """Give a key to a held block that is full now."""
        assert self._keys[block] is None, f"block {block} has a key"
        assert self._references[block], f"block {block} is not held"
        self._keys[block] = key
        if self._found.setdefault(key, block) != block:
            self._copies.setdefault(key, []).append(block)
        else:
            self.changed(key)

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a reference from each block; the first one is evicted first."""
        for block in blocks:
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} is not held"
            if not self._references[block] and self._keys[block] is not None:
                self._free[block] = None
        for block in reversed(blocks):
            if not self._references[block] and self._keys[block] is None:
                self._free[block] = None
                self._free.move_to_end(block, last=False)

    def _evict(self, block: int) -> None:
        key = self._keys[block]
        assert key is not None
        self._keys[block] = None
        copies = self._copies.get(key)
        if copies is None:
            del self._found[key]
            self.changed(key)
            return
        if self._found[key] == block:
            self._found[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[key]
