"""Items by key, with fast access to the one with the smallest key: a heap with stale entries.

A changed or removed item leaves its entry in the heap; such an entry is dropped once it is the first,
and all of them once they are the majority. O(log items) per change, amortised, and O(1) to read.

:mod:`fairserve.scheduling.fairness.counter_node` has heaps of its own: they are on the path of every
token, and the counters in their entries are the key and the test of validity at the same time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SLACK = 8
"""Number of entries over twice the items at which the heap is rebuilt."""


class LazyHeap(Generic[T]):
    """Items with keys. Of equal keys, the one set first is the least."""

    __slots__ = ("_entries", "_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, T]] = []
        self._entries: dict[T, tuple[Any, int, T]] = {}
        """The valid entry of each item."""
        self._numbers = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._entries

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries)

    def set(self, item: T, key: Any) -> None:
        """Add an item, or change its key."""
        known = self._entries.get(item)
        if known is not None and known[0] == key:
            return
        self._numbers += 1
        self._entries[item] = entry = (key, self._numbers, item)
        heap = self._heap
        if heap and heap[0][2] is item:
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > 2 * len(self._entries) + SLACK:
            self._rebuild()

    def lower(self, item: T, key: Any) -> None:
        """Add an item, or change its key unless it is as small already."""
        known = self._entries.get(item)
        if known is None or key < known[0]:
            self.set(item, key)

    def discard(self, item: T) -> None:
        """Remove an item if present."""
        if self._entries.pop(item, None) is None:
            return
        if not self._entries:
            self._heap.clear()
        elif len(self._heap) > 2 * len(self._entries) + SLACK:
            self._rebuild()

    def first(self) -> tuple[Any, T]:
        """Return the smallest key and its item. Raises IndexError if there is none."""
        heap, entries = self._heap, self._entries
        while True:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return entry[0], entry[2]
            heappop(heap)

    def _rebuild(self) -> None:
        self._heap = list(self._entries.values())
        heapify(self._heap)
