"""Waiting calls in buckets, placed by how much of their prompt is cached.

A call's match changes only when the cache does, so a pass matches the calls that came since the last
one, and all of them only if the cache's version is another. Each bucket is a heap: a pass costs
O(waiting) where the cache changed and O(offered * log waiting) besides, never a full sort.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from fairserve.scheduling.base import LocalCall, PrefixCache

Placement = Callable[[LocalCall, int], tuple[int, int]]
"""``(bucket, rank)`` of a call with so many matched tokens; the lowest rank of a bucket is first."""

_Entry = tuple[int, int, str]


class MatchedQueue:
    """Within a bucket: by rank, then by arrival. Nothing moves during a pass."""

    def __init__(self, placement: Placement, buckets: int = 1) -> None:
        self._placement = placement
        self._waiting: dict[str, LocalCall] = {}
        self._new: dict[str, LocalCall] = {}
        """Those that have not been matched yet."""
        self._heaps: list[list[_Entry]] = [[] for _ in range(buckets)]
        """``(rank, arrival, call id)``; entries of cancelled calls stay until they are met."""
        self._aside: list[tuple[int, _Entry]] = []
        """Entries that were passed over in this pass."""
        self._version: int | None = None

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._waiting

    def add(self, call: LocalCall) -> None:
        """A call waits; it is placed at the next pass."""
        self._waiting[call.call_id] = self._new[call.call_id] = call

    def remove(self, call_id: str) -> LocalCall:
        """Take a call out. Raises KeyError if it does not wait."""
        call = self._waiting.pop(call_id)
        self._new.pop(call_id, None)
        return call

    def start_pass(self, cache: PrefixCache) -> None:
        """Place new calls and those passed over; all of them if their match may have changed."""
        entries = len(self._aside) + sum(map(len, self._heaps))
        if cache.version != self._version or entries > 2 * len(self._waiting) + 64:
            self._version = cache.version
            for heap in self._heaps:
                heap.clear()
            for call in self._waiting.values():
                bucket, entry = self._place(call, cache)
                self._heaps[bucket].append(entry)
            for heap in self._heaps:
                heapq.heapify(heap)
        else:
            for bucket, entry in self._aside:
                heapq.heappush(self._heaps[bucket], entry)
            for call in self._new.values():
                bucket, entry = self._place(call, cache)
                heapq.heappush(self._heaps[bucket], entry)
        self._aside.clear()
        self._new.clear()

    def first(self, bucket: int = 0) -> LocalCall | None:
        """The first call of the bucket that was not passed over in this pass."""
        heap = self._heaps[bucket]
        while heap:
            _, arrival, call_id = heap[0]
            call = self._waiting.get(call_id)
            if call is not None and call.arrival == arrival:
                return call
            heapq.heappop(heap)
        return None

    def take(self, bucket: int = 0) -> LocalCall:
        """Take the bucket's first call out."""
        return self.remove(heapq.heappop(self._heaps[bucket])[2])

    def pass_over(self, bucket: int = 0) -> None:
        """Set the bucket's first call aside until the next pass."""
        self._aside.append((bucket, heapq.heappop(self._heaps[bucket])))

    def _place(self, call: LocalCall, cache: PrefixCache) -> tuple[int, _Entry]:
        bucket, rank = self._placement(call, cache.matched_tokens(call))
        return bucket, (rank, call.arrival, call.call_id)
