"""A client's waiting calls in order of arrival.

New calls stand in a double-ended queue. Only one that comes back out of the batch to an older place
goes into a heap, so a queue without preemption costs no comparisons. A cancelled call is left where it
is and dropped when it comes to the front or when such calls are the majority.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any

from fairserve.scheduling.base import LocalCall


class Entry:
    """A call in a scheduler, from its arrival to its end."""

    __slots__ = ("account", "cached_tokens", "call", "client", "waiting")

    def __init__(self, call: LocalCall) -> None:
        self.call = call
        self.waiting = True
        """In a queue, as opposed to running or ended."""
        self.cached_tokens = -1
        """Prompt tokens from the cache when it was first selected; -1 before, never reset."""
        self.client: Any = None
        """For the scheduler: what it knows about the client."""
        self.account: Any = None
        """For the scheduler: what the call was charged."""


class ClientQueue:
    """O(1) per call, O(log returned calls of the client) for one that was preempted; amortised."""

    __slots__ = ("_cancelled", "_returned", "first", "fresh")

    def __init__(self) -> None:
        self.first: Entry | None = None
        """The call that arrived first."""
        self.fresh: deque[Entry] = deque()
        """In order of arrival."""
        self._returned: list[tuple[int, Entry]] = []
        self._cancelled = 0
        """Entries that do not wait any more."""

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self.fresh) + len(self._returned) - self._cancelled

    def add(self, entry: Entry) -> None:
        """Queue a call at the place that its arrival number gives it."""
        entry.waiting = True
        arrival = entry.call.arrival
        fresh = self.fresh
        if not fresh or arrival > fresh[-1].call.arrival:
            fresh.append(entry)
        else:
            heapq.heappush(self._returned, (arrival, entry))
        if self.first is None or arrival < self.first.call.arrival:
            self.first = entry

    def take(self) -> Entry | None:
        """Remove the first call; returns the following one."""
        first = self.first
        assert first is not None, "take from a queue that has calls"
        first.waiting = False
        fresh = self.fresh
        if self._cancelled or self._returned:
            self._cancelled += 1
            return self._settle()
        fresh.popleft()
        self.first = following = fresh[0] if fresh else None
        return following

    def remove(self, entry: Entry) -> Entry | None:
        """Remove a call that was cancelled; returns the first of the others."""
        entry.waiting = False
        self._cancelled += 1
        if 2 * self._cancelled > len(self.fresh) + len(self._returned) + 16:
            self.fresh = deque(other for other in self.fresh if other.waiting)
            self._returned = [other for other in self._returned if other[1].waiting]
            heapq.heapify(self._returned)
            self._cancelled = 0
        return self._settle()

    def _settle(self) -> Entry | None:
        """Drop what does not wait from both fronts; sets and returns the first call."""
        fresh, returned = self.fresh, self._returned
        while fresh and not fresh[0].waiting:
            fresh.popleft()
            self._cancelled -= 1
        while returned and not returned[0][1].waiting:
            heapq.heappop(returned)
            self._cancelled -= 1
        if returned and not (fresh and fresh[0].call.arrival < returned[0][0]):
            self.first = returned[0][1]
        else:
            self.first = fresh[0] if fresh else None
        return self.first
