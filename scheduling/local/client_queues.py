"""A client's waiting calls in the order of arrival.

New calls wait in a double-ended queue. Only a preempted call that returns to an older place goes
into a heap, so a queue without preemption needs no comparisons. A cancelled call stays in place and
is dropped when it reaches the front, or when cancelled calls are the majority.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any

from fairserve.scheduling.base import LocalCall


class Entry:
    """A scheduler's record of a call, from arrival to end."""

    __slots__ = ("account", "arrival", "cached_tokens", "call", "client", "cost", "waiting")

    def __init__(self, call: LocalCall) -> None:
        self.call = call
        self.arrival = call.arrival
        self.waiting = True
        """True while the call is queued, as opposed to running or ended."""
        self.cached_tokens = -1
        """Cached prompt tokens at the first selection, if the scheduler charges by them; else -1."""
        self.cost = -1.0
        """Cost of the selection if it is known before; else -1."""
        self.client: Any = None
        """Scheduler's data about the client."""
        self.account: Any = None
        """Scheduler's data about the call's charges."""


class ClientQueue:
    """Waiting calls. O(1) per call, O(log requeued calls) for a preempted one; amortised."""

    __slots__ = ("_gone", "_returned", "first", "fresh", "in_order")

    def __init__(self) -> None:
        self.first: Entry | None = None
        """Call that arrived first."""
        self.fresh: deque[Entry] = deque()
        """Calls in the order of arrival."""
        self.in_order = True
        """True if all calls wait in ``fresh``, with none cancelled or requeued; its front is the
        first."""
        self._returned: list[tuple[int, Entry]] = []
        self._gone = 0
        """Number of entries that no longer wait."""

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self.fresh) + len(self._returned) - self._gone

    def add(self, entry: Entry) -> None:
        """Queue a call at the place given by its arrival number."""
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
        """Remove a call, most often the first; return the first of the others."""
        entry.waiting = False
        if self.in_order and entry is self.first:
            self.fresh.popleft()
            self.first = self.fresh[0] if self.fresh else None
            return self.first
        self._gone += 1
        if 2 * self._gone > len(self.fresh) + len(self._returned) + 16:
            # a set: a call that was removed and requeued may be here twice
            standing = {*self.fresh, *(other for _, other in self._returned)}
            waiting = [other for other in standing if other.waiting]
            self.fresh = deque(sorted(waiting, key=lambda other: other.arrival))
            self._returned, self._gone = [], 0
        return self._settle()

    def _settle(self) -> Entry | None:
        """Drop entries that no longer wait from both fronts; set and return the first call."""
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
