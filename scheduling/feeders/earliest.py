"""Set of calls with fast access to the first: a heap that drops stale entries at its top."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

_SLACK = 64
"""Number of entries over twice the calls at which the heap is rebuilt."""


K = TypeVar("K")
Key = TypeVar("Key", bound=Any)
"""Sort key of a call: its sequence number, or a tuple that ends with it."""


class Earliest(Generic[Key]):
    """Calls with their sort keys. Every method is O(log calls), amortised."""

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._heap: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._keys)

    def add(self, call_id: str, key: Key) -> None:
        """Add a call with a unique key; adding it again with the same key is allowed."""
        if call_id not in self._keys:
            self._keys[call_id] = key
            heappush(self._heap, (key, call_id))

    def discard(self, call_id: str) -> None:
        """Remove a call if present."""
        self._keys.pop(call_id, None)
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            self._heap = [(key, call_id) for call_id, key in self._keys.items()]
            heapify(self._heap)

    def first(self) -> tuple[Key, str]:
        """Return the smallest key and its call. Raises IndexError if empty."""
        heap = self._heap
        while self._keys.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0]


def discard_from(sets: dict[K, Any], key: K, call_id: str) -> None:
    """Remove a call from one of the sets; a set that becomes empty is removed, too."""
    found = sets.get(key)
    if found is not None:
        found.discard(call_id)
        if not found:
            del sets[key]
