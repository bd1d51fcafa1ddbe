"""A client's waiting calls in order of arrival.

New calls wait in a double-ended queue. Only a preempted call that returns to an older place goes into a
heap, so a queue without preemption costs no comparisons. A cancelled call stays in its place and is
dropped when it reaches the front or when such calls are the majority.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any

from fairserve.scheduling.base import LocalCall


class Entry:
    """A call in a scheduler, from its arrival to its end."""

    __slots__ = ("account", "arrival", "cached_tokens", "call", "client", "cost", "waiting")

    def __init__(self, call: LocalCall) -> None:
        self.call = call
        self.arrival = call.arrival
        self.waiting = True
        """True while it is in a queue, as opposed to running or ended."""
        self.cached_tokens = -1
        """Cached prompt tokens at its first selection, for schedulers that charge by them; else -1."""
        self.cost = -1.0
        """Cost of its selection, if known before; else -1."""
        self.client: Any = None
        """Data of the scheduler about the client."""
        self.account: Any = None
        """Data of the scheduler about the call's charges."""


class ClientQueue:
    """O(1) per call, O(log returned calls of the client) for one that was preempted; amortised."""

    __slots__ = ("_gone", "_returned", "first", "fresh", "in_order")

    def __init__(self) -> None:
        self.first: Entry | None = None
        """The call that arrived first."""
        self.fresh: deque[Entry] = deque()
        """Calls in order of arrival."""
        self.in_order = True
        """True if all wait in ``fresh``: nothing was cancelled or requeued. Its front is the first."""
        self._returned: list[tuple[int, Entry]] = []
        self._gone = 0
        """Entries that do not wait any more."""

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self.fresh) + len(self._returned) - self._gone

    def add(self, entry: Entry) -> None:
        """Queue a call at the place that its arrival number gives it."""
        entry.waiting = True
        arrival = entry.arrival
        fresh = self.fresh
        if not fresh or arrival > fresh[-1].arrival:
            fresh.append(entry)
        else:
            heapq.heappush(self._returned, (arrival, entry))
            self.in_order = False
        if self.first is None or arrival < self.first.arrival:
            self.first = entry

    def remove(self, entry: Entry) -> Entry | None:
        """Take out a call, most often the first; returns the first of the others."""
        entry.waiting = False
        if self.in_order and entry is self.first:
            self.fresh.popleft()
            self.first = self.fresh[0] if self.fresh else None
            return self.first
        self._gone += 1
        if 2 * self._gone > len(self.fresh) + len(self._returned) + 16:
            # a set: a call that left from behind the first and returned may be here twice
            standing = {*self.fresh, *(other for _, other in self._returned)}
            waiting = [other for other in standing if other.waiting]
            self.fresh = deque(sorted(waiting, key=lambda other: other.arrival))
            self._returned, self._gone = [], 0
        return self._settle()

    def _settle(self) -> Entry | None:
        """Drop what does not wait from both fronts; sets and returns the first call."""
        fresh, returned = self.fresh, self._returned
        while fresh and not fresh[0].waiting:
            fresh.popleft()
            self._gone -= 1
        while returned and not returned[0][1].waiting:
            heapq.heappop(returned)
            self._gone -= 1
        if returned and not (fresh and fresh[0].arrival < returned[0][0]):
            self.first = returned[0][1]
        else:
            self.first = fresh[0] if fresh else None
        self.in_order = not self._gone and not returned
        return self.first
