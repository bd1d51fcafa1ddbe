"""A set of calls that knows the earliest: a heap whose stale entries go when they come to the top."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

_SLACK = 64
"""The heap is made anew when it has so many more entries than twice the calls."""


class Earliest:
    """Calls with their sequence numbers. Every method is O(log calls), amortised."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        """Number of calls."""
        return len(self._numbers)

    def add(self, call_id: str, number: int) -> None:
        """A call, with a number that no other has; it may be here already, with the same one."""
        if call_id not in self._numbers:
            self._numbers[call_id] = number
            heappush(self._heap, (number, call_id))

    def discard(self, call_id: str) -> None:
        """Not that call, if it is here."""
        self._numbers.pop(call_id, None)
        if len(self._heap) > 2 * len(self._numbers) + _SLACK:
            self._heap = [(number, call_id) for call_id, number in self._numbers.items()]
            heapify(self._heap)

    def first(self) -> tuple[int, str]:
        """The smallest number and its call. Raises IndexError if there is none."""
        heap = self._heap
        while self._numbers.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0]
