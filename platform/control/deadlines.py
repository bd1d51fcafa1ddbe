"""Time-outs of waits in the queue and of the leases of grants. Control's tick evaluates them."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class QueueWaits:
    """Calls that wait for a grant, each with its time-out. O(log n) per wait."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._ends: list[tuple[float, int, str]] = []
        """Heap of time-outs. Entries of calls that were granted are dropped when they are due."""
        self._begun = 0
        self._waiting: dict[str, int] = {}
        """Number of the current wait of each call."""

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    def begin(self, call_id: str, now_s: float) -> None:
        """Start the wait of a call, for the first time or after it was requeued."""
        self._begun += 1
        self._waiting[call_id] = self._begun
        heapq.heappush(self._ends, (now_s + self._max_wait_s, self._begun, call_id))

    def end(self, call_id: str) -> None:
        """End the wait of a call; unknown ids are ignored."""
        self._waiting.pop(call_id, None)

    def over(self, now_s: float) -> Iterator[str]:
        """Yield the calls whose wait timed out; the caller ends them."""
        while self._ends and self._ends[0][0] <= now_s:
            _, number, call_id = heapq.heappop(self._ends)
            if self._waiting.get(call_id) == number:
                yield call_id

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "begun": self._begun,
            "ends": [list(each) for each in self._ends],
            "waiting": dict(self._waiting),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._begun, self._waiting = state["begun"], dict(state["waiting"])
        self._ends = [(end_s, number, call_id) for end_s, number, call_id in state["ends"]]


class Leases:
    """Granted calls by their last progress, the oldest first. O(1) per renewal."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._seen: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Number of granted calls."""
        return len(self._seen)

    def renew(self, call_id: str, now_s: float) -> None:
        """Start or renew the lease of a call."""
        self._seen[call_id] = now_s
        self._seen.move_to_end(call_id)

    def end(self, call_id: str) -> None:
        """End the lease of a call; unknown ids are ignored."""
        self._seen.pop(call_id, None)

    def over(self, now_s: float) -> Iterator[str]:
        """Yield the calls whose lease expired; the caller ends each before it requests the next."""
        while self._seen:
            call_id, seen_s = next(iter(self._seen.items()))
            if now_s - seen_s < self.lease_s:
                return
            yield call_id

    def snapshot(self) -> list[list[Any]]:
        """Return the state as plain JSON values."""
        return [list(each) for each in self._seen.items()]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Replace the state by an earlier snapshot."""
        self._seen = OrderedDict((call_id, seen_s) for call_id, seen_s in state)
