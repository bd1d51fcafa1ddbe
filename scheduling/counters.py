"""Virtual counters: the service that each client has received, with the lift of VTC.

VTC Algorithm 2 lines 6-13, shared by VTC and WSC (ALGORITHMS section 2). A client that had nothing
queued is lifted when a call of its arrives: to the counter of the client that left the queue last if
the queue is empty, else to the smallest counter among the queued clients. Charges that contain a
prediction are kept apart (``reserve``), because lifting a newcomer to a level that is later given
back would make it wait: the lift compares counters without outstanding predictions.

The least client comes from a lazy heap of (counter, arrival of its earliest call, name): both only
grow in the ordinary course, so a stale entry is a lower bound and is corrected when it reaches the
top; where one falls (``release``, ``refund``, a call put back in front) a fresh entry is pushed.
Amortised O(log clients) per arrival and selection, O(1) per charge. The lift scans the queued
clients only when a client returns from idle while predictions are outstanding.
"""

from __future__ import annotations

import heapq
from typing import Any

_SWEEP_MIN = 1024
"""Counters of idle clients are looked through when there are about this many more."""


class VirtualCounters:
    """Counters of clients by name, and how many calls each has queued."""

    def __init__(self) -> None:
        self._value: dict[str, float] = {}
        self._reserved: dict[str, float] = {}
        self._queued: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._last_left: str | None = None
        """The client that left the queue last; its present counter is what counts."""
        self._earliest: dict[str, int] = {}
        """Arrival number of each queued client's earliest call: ties go to the earlier one."""
        self._heap: list[tuple[float, int, str]] = []
        self._sweep_at = _SWEEP_MIN

    def value(self, client: str) -> float:
        """The client's counter, predictions included."""
        return self._value.get(client, 0.0) + self._reserved.get(client, 0.0)

    def queued(self, client: str) -> int:
        """Calls of the client that wait in this queue."""
        return self._queued.get(client, 0)

    @property
    def queued_clients(self) -> list[str]:
        """Clients with something queued, in the order in which they became so."""
        return list(self._queued)

    def arrive(self, client: str, arrival: int) -> None:
        """A call with this arrival number enters the queue; lifts a client that had none there."""
        if client in self._queued:
            self._queued[client] += 1
            if arrival < self._earliest[client]:
                self._earliest[client] = arrival
                self._push(client)
            return
        self._value[client] = max(self._value.get(client, 0.0), self._lift_level())
        self._queued[client] = 1
        self._earliest[client] = arrival
        self._push(client)
        if len(self._value) >= self._sweep_at:
            self._sweep()

    def leave(self, client: str, earliest: int | None) -> None:
        """A call of the client leaves the queue; ``earliest`` arrived first among the rest."""
        left = self._queued[client] - 1
        assert (left == 0) == (earliest is None), (client, left, earliest)
        if earliest is not None:
            self._queued[client] = left
            self._earliest[client] = earliest
        else:
            del self._queued[client], self._earliest[client]
            self._last_left = client

    def dispatch(self, client: str, earliest: int | None) -> None:
        """A call of the client leaves the queue and runs."""
        self.leave(client, earliest)
        self._running[client] = self._running.get(client, 0) + 1

    def done(self, client: str) -> None:
        """A running call of the client ended, or returned to the queue."""
        left = self._running[client] - 1
        if left:
            self._running[client] = left
        else:
            del self._running[client]
            if self._reserved.pop(client, None) and client in self._queued:
                self._push(client)  # a rounding error: predictions belong to running calls

    def charge(self, client: str, cost: float) -> None:
        """Add received service; never negative."""
        assert cost >= 0, cost
        if cost:
            self._value[client] = self._value.get(client, 0.0) + cost

    def reserve(self, client: str, cost: float) -> None:
        """Charge a prediction, to be released when it has come true or not."""
        self._reserved[client] = self._reserved.get(client, 0.0) + cost

    def release(self, client: str, cost: float) -> None:
        """Give back part of a prediction."""
        left = self._reserved.get(client, 0.0) - cost  # rounding may have ended it before
        if left > 1e-9:
            self._reserved[client] = left
        else:
            self._reserved.pop(client, None)
        if client in self._queued:
            self._push(client)

    def realise(self, client: str, cost: float) -> None:
        """Part of a prediction has come true: received service now, the sum stays as it was."""
        before = self.value(client)
        self._value[client] = self._value.get(client, 0.0) + cost
        left = self._reserved.get(client, 0.0) - cost
        if left > 1e-9:
            self._reserved[client] = left
        else:
            self._reserved.pop(client, None)
        if client in self._queued and self.value(client) < before:  # by rounding
            self._push(client)

    def refund(self, client: str, cost: float) -> None:
        """Take back a charge whose service was lost through no fault of the client."""
        self._value[client] = max(0.0, self._value.get(client, 0.0) - cost)
        if client in self._queued:
            self._push(client)

    def least(self) -> str:
        """The queued client to be served next. Raises IndexError if there is none."""
        heap = self._heap
        while True:
            value, arrival, client = heap[0]
            if client not in self._queued:
                heapq.heappop(heap)
                continue
            present = (self.value(client), self._earliest[client])
            if (value, arrival) == present:
                return client
            if (value, arrival) < present:
                heapq.heapreplace(heap, (*present, client))
            else:  # a fresher, lower entry of this client exists further down
                heapq.heappop(heap)

    def minimum(self) -> float:
        """The smallest counter among queued clients. Raises IndexError if there is none."""
        return self.value(self.least())

    def up_to(self, slack: float) -> list[tuple[float, str]]:
        """Queued clients whose counter is at most ``minimum + slack``, smallest first."""
        bound = self.minimum() + slack
        found = [
            (value, client) for client in self._queued if (value := self.value(client)) <= bound
        ]
        found.sort()
        return found

    def _lift_level(self) -> float:
        """What a client that had nothing queued is lifted to."""
        if not self._queued:
            return self._level_of_last()
        if self._reserved:
            return min(self._value.get(other, 0.0) for other in self._queued)
        return self.minimum()

    def _level_of_last(self) -> float:
        return 0.0 if self._last_left is None else self._value.get(self._last_left, 0.0)

    def _push(self, client: str) -> None:
        if len(self._heap) > 2 * len(self._queued) + 64:  # mostly stale: begin anew
            self._rebuild()
        else:
            heapq.heappush(self._heap, (self.value(client), self._earliest[client], client))

    def _rebuild(self) -> None:
        self._heap = [(self.value(c), self._earliest[c], c) for c in self._queued]
        heapq.heapify(self._heap)

    def _sweep(self) -> None:
        """Forget idle clients at or below every queued one: the lift makes that harmless."""
        level = min((self._value.get(c, 0.0) for c in self._queued), default=self._level_of_last())
        self._value = {
            client: value
            for client, value in self._value.items()
            if value > level
            or client in self._queued
            or client in self._running
            or client == self._last_left
        }
        self._sweep_at = 2 * len(self._value) + _SWEEP_MIN

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values."""
        return {
            "value": dict(self._value),
            "reserved": dict(self._reserved),
            "queued": dict(self._queued),
            "running": dict(self._running),
            "earliest": dict(self._earliest),
            "sweep_at": self._sweep_at,
            "last_left": self._last_left,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._value = dict(state["value"])
        self._reserved = dict(state["reserved"])
        self._queued = dict(state["queued"])
        self._running = dict(state["running"])
        self._last_left = state["last_left"]
        self._earliest = dict(state["earliest"])
        self._sweep_at = state["sweep_at"]
        self._rebuild()
