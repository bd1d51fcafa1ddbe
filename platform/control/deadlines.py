"""Calls with one limit of time for all of them. Control's tick evaluates it.

One object has the waits in the queue, another one the leases of grants. All limits of an object are
equally long, so that the call whose limit begins first is the first to exceed it. A call that ends
leaves no entry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any


class Deadlines:
    """Calls by the time at which their limit began, the oldest first. Each operation is O(1)."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._begun: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Number of calls."""
        return len(self._begun)

    def begin(self, call_id: str, now_s: float) -> None:
        """Start the time of a call, or start it again."""
        self._begun[call_id] = now_s
        self._begun.move_to_end(call_id)

    def end(self, call_id: str) -> None:
        """Remove a call; unknown ids are ignored."""
        self._begun.pop(call_id, None)

    def over(self, now_s: float) -> Iterator[str]:
        """Yield the calls whose time is over; the caller ends each before it requests the next."""
        while self._begun:
            call_id, begun_s = next(iter(self._begun.items()))
            if now_s - begun_s < self._limit_s:
                return
            yield call_id

    def snapshot(self) -> list[list[Any]]:
        """Return the state as plain JSON values."""
        return [list(each) for each in self._begun.items()]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Replace the state by an earlier snapshot."""
        self._begun = OrderedDict((call_id, begun_s) for call_id, begun_s in state)
