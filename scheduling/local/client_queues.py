"""Waiting calls by client, each client's in order of arrival.

A heap per client: a preempted call returns to its old place, a cancelled one is left in the heap and
dropped when it comes to the top or when such entries are the majority. The top is always waiting.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from fairserve.scheduling.base import LocalCall


@dataclass(slots=True)
class _Queue:
    size: int = 0
    heap: list[tuple[int, str]] = field(default_factory=list)
    """``(arrival, call id)``, some of calls that do not wait any more."""


class ClientQueues:
    """O(log calls of the client) per call, amortised; O(1) to look at a client's earliest."""

    def __init__(self) -> None:
        self._calls: dict[str, LocalCall] = {}
        self._queues: dict[str, _Queue] = {}

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._calls)

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._calls

    def has(self, client_id: str) -> bool:
        """Whether the client has a waiting call."""
        return client_id in self._queues

    def size(self, client_id: str) -> int:
        """How many calls of the client wait."""
        queue = self._queues.get(client_id)
        return 0 if queue is None else queue.size

    def add(self, call: LocalCall) -> None:
        """Queue a call at the place that its arrival number gives it."""
        self._calls[call.call_id] = call
        queue = self._queues.get(call.client_id)
        if queue is None:
            queue = self._queues[call.client_id] = _Queue()
        queue.size += 1
        heapq.heappush(queue.heap, (call.arrival, call.call_id))

    def earliest(self, client_id: str) -> LocalCall:
        """The client's call that arrived first. Raises KeyError if it has none."""
        return self._calls[self._queues[client_id].heap[0][1]]

    def earliest_arrival(self, client_id: str) -> int | None:
        """Arrival number of the client's earliest call, None if it has none."""
        queue = self._queues.get(client_id)
        return None if queue is None else queue.heap[0][0]

    def remove(self, call_id: str) -> LocalCall:
        """Take a call out. Raises KeyError if it does not wait."""
        call = self._calls.pop(call_id)
        queue = self._queues[call.client_id]
        queue.size -= 1
        if not queue.size:
            del self._queues[call.client_id]
            return call
        if len(queue.heap) > 2 * queue.size + 16:
            queue.heap = sorted({entry for entry in queue.heap if self._waits(entry)})
        while not self._waits(queue.heap[0]):
            heapq.heappop(queue.heap)
        return call

    def _waits(self, entry: tuple[int, str]) -> bool:
        call = self._calls.get(entry[1])
        return call is not None and call.arrival == entry[0]
