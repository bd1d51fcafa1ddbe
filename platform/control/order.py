"""The one order in which the events of a process reach its cell, and their times.

Control puts its events into an order and does not know how it comes about. :class:`OwnOrder` is that of
a server that decides alone: an event is applied when it is put. Servers that share a fair order have
:class:`fairserve.platform.control.log.order.LogOrder`, in which an event is applied when it is read from
their common log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import CellEvent, ClockSet, DecodedTokensDue, Output
from fairserve.scheduling.events import Tick

logger = logging.getLogger(__name__)

TICK_S = 0.25
COLLECT_S = 0.02
"""Longest time for which decoded tokens are collected for one event."""
CLOCK_STEP_S = 0.001
"""Difference between UTC and the cell's time from which the cell gets a new offset."""

OnOutputs = Callable[[Sequence[Output]], None]
"""Executes the outputs of an event, on the event loop."""


class EventOrder(Protocol):
    """The order of events for one cell. Belongs to one event loop from ``start`` on."""

    shared: bool
    """True if other processes put events into it, too."""
    speaks: bool
    """True while this process reports workers and keeps settings up to date; always if it is alone."""

    @property
    def lag_s(self) -> float:
        """Seconds since this process has read time in the order; 0 if it is alone."""
        ...

    def start(self) -> None:
        """Bind to the running loop, and begin with ticks."""
        ...

    async def close(self) -> None:
        """Stop; events that were put are kept as :meth:`kept` says."""
        ...

    def put(self, event: CellEvent) -> None:
        """Add an event. One that is invalid raises its error, or is logged if it is applied later."""
        ...

    async def applied(self, event: CellEvent) -> None:
        """Add an event and wait until its outputs are executed; raise its error if it is invalid.

        The order of one process does not suspend. A cancelled wait does not take the event back.
        """
        ...

    def end_waits(self, error: Exception) -> None:
        """Give an error to all that wait for an event; it may be applied later."""
        ...

    async def kept(self) -> None:
        """Wait until the events so far outlive this process, as far as the order keeps them itself."""
        ...

    def observe(self, event: CellEvent) -> None:
        """Add what any process may see of a worker, if this one is to report it; else ignore it."""
        ...


class OwnOrder:
    """The order of a server that decides alone: an event is applied when it is put."""

    shared = False
    speaks = True
    lag_s = 0.0

    def __init__(
        self,
        cell: Cell,
        on_outputs: OnOutputs,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """``clock`` is the cell's and does not go back; ``wall`` returns UTC epoch seconds."""
        self._cell = cell
        self._on_outputs = on_outputs
        self._clock = clock
        self._wall = wall
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._collecting: asyncio.TimerHandle | None = None
        self._set_clock()

    def start(self) -> None:
        """See the protocol."""
        self._loop = asyncio.get_running_loop()
        self._ticker = self._loop.create_task(self._tick_until_closed(), name="control tick")

    async def close(self) -> None:
        """See the protocol."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)

    def put(self, event: CellEvent) -> None:
        """See the protocol."""
        try:
            self._cell.apply(event, self._clock())
        finally:
            self._on_outputs(self._cell.outputs)
        if self._cell.calls.has_decoded and self._collecting is None and self._loop is not None:
            self._collecting = self._loop.call_later(COLLECT_S, self._pass_decoded)

    observe = put

    async def applied(self, event: CellEvent) -> None:
        """See the protocol."""
        self.put(event)

    def end_waits(self, error: Exception) -> None:
        """Do nothing: nobody waits."""

    async def kept(self) -> None:
        """Return at once: the journal keeps what follows from the events."""

    def _pass_decoded(self) -> None:
        self._collecting = None
        self.put(DecodedTokensDue())

    # --- time -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Expire waits and leases, then pass the time to the dispatcher."""
        self._set_clock()
        self.put(Tick())

    async def _tick_until_closed(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception:
                logger.exception("a tick failed")

    def _set_clock(self) -> None:
        """Update the cell's offset to UTC, if the clock was set or has drifted."""
        now_s = self._clock()
        now_at = self._wall()
        if abs(now_at - self._cell.utc_s(now_s)) >= CLOCK_STEP_S:
            self.put(ClockSet(now_at - now_s))
