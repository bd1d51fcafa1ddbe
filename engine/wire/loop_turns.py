"""Turns of streams on the event loop: what a worker has sent is worked off a few kilobytes at a time.

A stream that has received much never suspends by itself: 128 KiB of a socket are some 700 events, and 30
such streams hold the loop for seconds, while the calls of all others wait. So after ``TURN_BYTES`` a
stream waits for its next turn. Each pass of the loop gives out a bounded number of turns, and tenants
take them in rotation: other work is delayed by a few milliseconds a pass, however many they are.

Cost: O(1), 5 microseconds for each turn, which is 8 events of 200 bytes. Weakness: a single event is
worked off whole, up to its largest size.
"""

from __future__ import annotations

import asyncio

from fairserve.interactions.rotation import Rotation

TURN_BYTES = 2 * 1024
"""Bytes that a stream may work off in one turn."""
EVENT_BYTES = 64
"""Bytes that an event counts besides its own: empty ones cost time, too."""
TURNS_PER_PASS = 4
"""Turns of all streams, or of all requests that begin, in one pass of the loop."""


class LoopTurns:
    """Turns on one event loop."""

    def __init__(self) -> None:
        self._waiting: Rotation[asyncio.Future[None]] = Rotation()
        """Streams that wait, by tenant."""

    def turn(self, tenant: str) -> asyncio.Future[None]:
        """Return the next turn of a tenant, in a later pass; a cancelled one is passed over."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._give)
        self._waiting.add(tenant, turn)
        return turn

    def _give(self) -> None:
        """Give out the turns of a pass, one to each tenant in rotation."""
        given = 0
        while self._waiting and given < TURNS_PER_PASS:
            turn = self._waiting.pop()
            if not turn.done():  # else its stream was cancelled
                turn.set_result(None)
                given += 1
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)
