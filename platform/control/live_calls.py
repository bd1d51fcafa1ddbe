"""The calls of control from their acceptance to their end, with their waits and leases.

The tables are changed together, so that a call is in all of them or in none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.deadlines import Leases, QueueWaits
from fairserve.platform.control.port import CallListener


class LiveCalls:
    """Calls by id; each either waits for a grant or has one. O(log waiting) per step of a call."""

    def __init__(
        self, max_queue_wait_s: float, lease_s: float, listeners: Sequence[CallListener]
    ) -> None:
        self._listeners = listeners
        self._calls: dict[str, CallState] = {}
        self._waits = QueueWaits(max_queue_wait_s)
        self._leases = Leases(lease_s)
        self._decoded: dict[str, int] = {}
        self._none = asyncio.Event()
        self._none.set()

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

    async def none_left(self) -> None:
        """Wait until there is no call."""
        await self._none.wait()

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
        self._none.clear()
        self._wait(live, now_s)
        for listener in self._listeners:
            listener.call_accepted(live, now_s)

    def grant(self, call_id: str, worker_id: str, now_s: float) -> CallState:
        """End the wait of a call and start its lease."""
        live = self._calls[call_id]
        live.worker_id = worker_id
        live.queue_s = now_s - live.submitted_s
        live.journaled_s = now_s
        self._waits.end(call_id)
        self._leases.renew(call_id, now_s)
        for listener in self._listeners:
            listener.call_granted(live)
        return live

    def renew(self, live: CallState, now_s: float) -> None:
        """Renew the lease of a call after its usage was updated."""
        self._leases.renew(live.call.call_id, now_s)
        for listener in self._listeners:
            listener.call_progressed(live, now_s)

    def wait_again(self, live: CallState, now_s: float) -> None:
        """Requeue a call whose worker failed: its grant ends, and it waits for another."""
        call_id = live.call.call_id
        self._leases.end(call_id)
        self._decoded.pop(call_id, None)
        live.worker_id = None
        live.started = False
        live.turn = asyncio.get_running_loop().create_future()
        self._wait(live, now_s)
        for listener in self._listeners:
            listener.call_requeued(live)

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
        if not self._calls:
            self._none.set()

    # --- reports and time-outs --------------------------------------------------------------------

    def decoded(self, call_id: str, tokens: int) -> bool:
        """Add a call's total output tokens to the next report; return true for its first entry."""
        first = not self._decoded
        self._decoded[call_id] = tokens
        return first

    def take_decoded(self) -> tuple[tuple[str, int], ...]:
        """Return the report, total output tokens by call id, and start a new one."""
        totals = tuple(self._decoded.items())
        self._decoded.clear()
        return totals

    def wait_expired(self, now_s: float) -> Iterator[CallState]:
        """Yield the calls whose wait timed out; the caller ends them."""
        return (self._calls[call_id] for call_id in self._waits.over(now_s))

    def lease_expired(self, now_s: float) -> Iterator[CallState]:
        """Yield the calls whose lease expired; the caller ends each before it requests the next."""
        return (self._calls[call_id] for call_id in self._leases.over(now_s))
