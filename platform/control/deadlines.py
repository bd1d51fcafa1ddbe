"""What ends by itself: a wait in the queue, and the lease of a grant. Driven by control's tick."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterator


class QueueWaits:
    """Calls that wait for a grant, each with the end of its wait. O(log n) per wait."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._ends: list[tuple[float, int, str]] = []
        """Entries of calls that got their turn are dropped when they are due."""
        self._numbers = itertools.count()
        self._waiting: dict[str, int] = {}
        """The number of each call's present wait."""

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    def begin(self, call_id: str, now_s: float) -> None:
        """A call begins to wait, for the first time or again."""
        number = next(self._numbers)
        self._waiting[call_id] = number
        heapq.heappush(self._ends, (now_s + self._max_wait_s, number, call_id))

    def end(self, call_id: str) -> None:
        """It waits no longer; unknown ids are ignored."""
        self._waiting.pop(call_id, None)

    def over(self, now_s: float) -> Iterator[str]:
        """Calls that have waited too long; the caller ends them."""
        while self._ends and self._ends[0][0] <= now_s:
            _, number, call_id = heapq.heappop(self._ends)
            if self._waiting.get(call_id) == number:
                yield call_id


class Leases:
    """Granted calls by their last sign of life, the oldest first. O(1) per renewal."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._seen: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Number of granted calls."""
        return len(self._seen)

    def renew(self, call_id: str, now_s: float) -> None:
        """A call was granted, or made progress."""
        self._seen[call_id] = now_s
        self._seen.move_to_end(call_id)

    def end(self, call_id: str) -> None:
        """Its grant has ended; unknown ids are ignored."""
        self._seen.pop(call_id, None)

    def over(self, now_s: float) -> Iterator[str]:
        """Calls whose lease has ended; the caller ends each before it takes the next."""
        while self._seen:
            call_id, seen_s = next(iter(self._seen.items()))
            if now_s - seen_s < self.lease_s:
                return
            yield call_id
