"""The calls of control from their acceptance to their end, with their waits and leases.

The tables are changed together, so that a call is in all of them or in none. Control's tick evaluates
the limits of waits and leases.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairserve.platform.control.call_state import CallState
from fairserve.scheduling.dispatch.dispatcher import Dispatcher


class Deadlines:
    """Calls with one limit of time, by the time at which it began, the oldest first. O(1) each.

    All limits of an object are equally long, so that the call whose limit begins first is the first to
    exceed it. A call that ends leaves no entry.
    """

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


class LiveCalls:
    """Calls by id; each either waits for a grant or has one. O(1) per step of a call."""

    def __init__(self, max_queue_wait_s: float, lease_s: float) -> None:
        self._calls: dict[str, CallState] = {}
        self._waits = Deadlines(max_queue_wait_s)
        self._leases = Deadlines(lease_s)
        self._decoded: dict[str, int] = {}
        """Total output tokens, by id, of the calls that made progress since the last report."""

    def __len__(self) -> int:
        """Number of calls, waiting and granted."""
        return len(self._calls)

    def __iter__(self) -> Iterator[CallState]:
        """Iterate over all calls in the order of their acceptance."""
        return iter(self._calls.values())

    @property
    def waiting(self) -> int:
        """Number of queued calls, without background calls, which wait without a limit."""
        return len(self._waits)

    @property
    def granted(self) -> int:
        """Number of running calls."""
        return len(self._leases)

    def get(self, call_id: str) -> CallState | None:
        """Return a queued or running call."""
        return self._calls.get(call_id)

    def running(self, call_id: str) -> CallState | None:
        """Return a running call."""
        live = self._calls.get(call_id)
        return None if live is None or live.worker_id is None else live

    # --- steps of a call --------------------------------------------------------------------------

    def accept(self, live: CallState, now_s: float) -> None:
        """Add a call, which waits for a grant."""
        self._calls[live.call.call_id] = live
        self._wait(live, now_s)

    def grant(self, call_id: str, worker_id: str, now_s: float) -> CallState:
        """End the wait of a call and start its lease."""
        live = self._calls[call_id]
        live.worker_id = worker_id
        live.queue_s = now_s - live.submitted_s
        live.journaled_s = now_s
        self._waits.end(call_id)
        self._leases.begin(call_id, now_s)
        return live

    def renew(self, live: CallState, now_s: float) -> None:
        """Renew the lease of a call."""
        self._leases.begin(live.call.call_id, now_s)

    def wait_again(self, live: CallState, now_s: float) -> None:
        """Requeue a call whose worker failed: its grant ends, and it waits for another."""
        call_id = live.call.call_id
        self._leases.end(call_id)
        self._decoded.pop(call_id, None)
        live.worker_id = None
        live.started = False
        self._wait(live, now_s)

    def _wait(self, live: CallState, now_s: float) -> None:
        if not live.call.background:
            self._waits.begin(live.call.call_id, now_s)

    def forget(self, live: CallState) -> None:
        """Remove a call that ended."""
        call_id = live.call.call_id
        del self._calls[call_id]
        self._waits.end(call_id)
        self._leases.end(call_id)
        self._decoded.pop(call_id, None)

    # --- reports and time-outs --------------------------------------------------------------------

    @property
    def has_decoded(self) -> bool:
        """True if calls made progress since the last report."""
        return bool(self._decoded)

    def decoded(self, call_id: str, tokens: int) -> None:
        """Add a call's total output tokens to the next report."""
        self._decoded[call_id] = tokens

    def take_decoded(self) -> tuple[tuple[str, int], ...]:
        """Return the report, total output tokens by call id, and start a new one."""
        totals = tuple(self._decoded.items())
        self._decoded.clear()
        return totals

    def wait_expired(self, now_s: float) -> Iterator[CallState]:
        """Yield the calls whose wait timed out; the caller ends each before it requests the next."""
        return (self._calls[call_id] for call_id in self._waits.over(now_s))

    def lease_expired(self, now_s: float) -> Iterator[CallState]:
        """Yield the calls whose lease expired; the caller ends each before it requests the next."""
        return (self._calls[call_id] for call_id in self._leases.over(now_s))

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "calls": [live.snapshot() for live in self],
            "waits": self._waits.snapshot(),
            "leases": self._leases.snapshot(),
            "decoded": [list(each) for each in self._decoded.items()],
        }

    def restore(self, state: Mapping[str, Any], dispatcher: Dispatcher) -> None:
        """Replace the state by an earlier snapshot; ``dispatcher`` has the same calls."""
        calls = [(dispatcher.call(plain["call_id"]), plain) for plain in state["calls"]]
        self._calls = {
            call.call_id: CallState.restored(plain, call, dispatcher.block_keys(call))
            for call, plain in calls
        }
        self._waits.restore(state["waits"])
        self._leases.restore(state["leases"])
        self._decoded = dict(state["decoded"])
