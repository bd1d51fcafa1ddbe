"""VTC as written in the paper, with a dictionary and no index: the reference for our order.

Algorithm 2 for a linear cost: counters, lift, smallest counter, its earliest call. Ties go to the
client whose earliest call arrived first.
"""

from __future__ import annotations

from collections import deque


class PlainVtc:
    """Reference implementation. O(clients) per selection."""

    def __init__(self, wp: float = 1.0, wq: float = 2.0) -> None:
        self._wp, self._wq = wp, wq
        self._counters: dict[str, float] = {}
        self._queues: dict[str, deque[tuple[int, str, int]]] = {}
        """Arrival number, call id and prompt tokens of each client's waiting calls."""
        self._last_left: str | None = None
        self._arrivals = 0

    def add(self, call_id: str, client: str, prompt_tokens: int) -> None:
        """Add a call that arrives (lines 6-13)."""
        self._arrivals += 1
        if client not in self._queues:
            if self._queues:
                level = min(self._counters[other] for other in self._queues)
            else:
                level = self._counters.get(self._last_left or "", 0.0)
            self._counters[client] = max(self._counters.get(client, 0.0), level)
            self._queues[client] = deque()
        self._queues[client].append((self._arrivals, call_id, prompt_tokens))

    def select(self) -> str:
        """Remove the next call, charge its prompt and return its id (lines 21-25)."""
        client = min(self._queues, key=lambda c: (self._counters[c], self._queues[c][0][0]))
        queue = self._queues[client]
        _, call_id, prompt_tokens = queue.popleft()
        if not queue:
            del self._queues[client]
            self._last_left = client
        self._counters[client] += self._wp * prompt_tokens
        return call_id

    def decoded(self, client: str, tokens: int) -> None:
        """Charge generated tokens (line 31)."""
        self._counters[client] += self._wq * tokens
