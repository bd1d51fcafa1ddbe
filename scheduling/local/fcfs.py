"""First come, first served: arrival order, and the first call that does not fit ends the pass.

The baseline of every "no fairness" row of the papers. Weakness: a flood of one client delays all.
"""

from __future__ import annotations

from collections import OrderedDict

from fairserve.scheduling.base import LocalCall, PrefixCache


class Fcfs:
    """Arrival order. Every operation is O(1)."""

    def __init__(self) -> None:
        self._arrivals = 0
        self._waiting: OrderedDict[str, LocalCall] = OrderedDict()
        self._running: dict[str, LocalCall] = {}
        self._stopped = False
        self._offered: str | None = None

    def add(self, call: LocalCall) -> None:
        """Append a call. Raises ValueError for a known id."""
        if call.call_id in self._waiting or call.call_id in self._running:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        self._arrivals += 1
        call.arrival = self._arrivals
        self._waiting[call.call_id] = call

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a step."""
        self._stopped = False
        self._offered = None

    def peek(self) -> LocalCall | None:
        """Return the earliest waiting call, unless one did not fit in this pass."""
        if self._stopped or not self._waiting:
            return None
        if self._offered is None or self._offered not in self._waiting:
            self._offered = next(iter(self._waiting))
        return self._waiting[self._offered]

    def accept(self, cached_tokens: int) -> None:
        """Run the offered call."""
        assert self._offered is not None, "accept follows peek"
        self._running[self._offered] = self._waiting.pop(self._offered)
        self._offered = None

    def skip(self) -> None:
        """End the pass: no call overtakes the one that does not fit."""
        self._stopped = True

    def decoded(self, call_id: str, tokens: int) -> None:
        """Check that the call is running; nothing is charged. Raises KeyError otherwise."""
        if call_id not in self._running:
            raise KeyError(call_id)

    def finish(self, call_id: str) -> None:
        """Remove a call. Raises KeyError if unknown."""
        if self._running.pop(call_id, None) is None:
            del self._waiting[call_id]

    def requeue(self, call_id: str) -> None:
        """Requeue a preempted call at the front."""
        self._waiting[call_id] = self._running.pop(call_id)
        self._waiting.move_to_end(call_id, last=False)

    def surplus(self, call_id: str) -> tuple[float, ...]:
        """Return (): no service is counted. Raises KeyError if the call is not running."""
        if call_id not in self._running:
            raise KeyError(call_id)
        return ()

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self._waiting)
