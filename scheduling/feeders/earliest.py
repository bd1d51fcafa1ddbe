"""A set of calls with its first: a heap whose stale entries are dropped when they reach the top."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

_SLACK = 64
"""Excess of entries over twice the calls at which the heap is rebuilt."""


K = TypeVar("K")
Key = TypeVar("Key", bound=Any)
"""Key of a call's place: its sequence number, or a tuple that ends with it."""


class Earliest(Generic[Key]):
    """Calls with the keys of their places. Every method is O(log calls), amortised."""

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._heap: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._keys)

    def add(self, call_id: str, key: Key) -> None:
        """Add a call with a unique key; it may be here already, with the same one."""
        if call_id not in self._keys:
            self._keys[call_id] = key
            heappush(self._heap, (key, call_id))

    def discard(self, call_id: str) -> None:
        """Remove a call if it is here."""
        self._keys.pop(call_id, None)
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            self._heap = [(key, call_id) for call_id, key in self._keys.items()]
            heapify(self._heap)

    def first(self) -> tuple[Key, str]:
        """Return the smallest key and its call. Raises IndexError if there is none."""
        heap = self._heap
        while self._keys.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0]

    def first_but(self, excluded: Collection[str]) -> tuple[Key, str] | None:
        """Return the first call that is not excluded, or None. O(calls) if the first is excluded."""
        first = self.first()
        if first[1] not in excluded:
            return first
        keys = self._keys.items()
        return min(((key, name) for name, key in keys if name not in excluded), default=None)


def discard_from(sets: dict[K, Any], key: K, call_id: str) -> None:
    """Remove a call from one of the sets; an empty set is removed, too."""
    found = sets.get(key)
    if found is not None:
        found.discard(call_id)
        if not found:
            del sets[key]
