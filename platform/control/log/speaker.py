"""The speaker of a cell: the control process that writes ticks, stores states, and begins epochs.

It holds a lease in Redis, which each tick renews. Another control process takes over once the lease has
run out; it has read the same log, so there is nothing to hand over. Two that believe to speak are
harmless: only the holder of the lease writes a tick, and rows are equal whoever stores them.

A state is stored only after the rows of its entries are in the database: a process that begins with it
derives all later rows again from the log, so no row depends on one process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from fairserve.platform.control.log.order import LogOrder
from fairserve.platform.control.log.redis_log import LOST, PresentEpoch, RedisLog, state_bytes
from fairserve.platform.control.log.shared_cell import EntryId
from fairserve.platform.control.log.wire import LogTick, tick_bytes
from fairserve.platform.control.order import TICK_S

logger = logging.getLogger(__name__)

LEASE_S = 3.0
"""Seconds after which another process speaks: less, and a starved machine loses its lease at random."""
SNAPSHOT_S = 20.0


class Speaker:
    """The task of one control process. ``run`` belongs to the event loop of its order."""

    def __init__(
        self,
        log: RedisLog,
        order: LogOrder,
        *,
        stored: Callable[[], EntryId],
        full: Callable[[], str],
        on_change: Callable[[bool], None] = lambda speaks: None,
    ) -> None:
        """``stored`` returns the entry up to which this process knows all rows to be in the database.

        ``full`` returns why nothing new may be accepted, else "". ``on_change`` is called when this
        process begins or ceases to speak.
        """
        self._log, self._order = log, order
        self._token = order.process
        self._stored, self._full, self._on_change = stored, full, on_change
        self._state: tuple[int, EntryId, bytes] | None = None
        """A state that is not stored yet, with its epoch and last entry. Others may store later ones."""
        self._stated_s = time.monotonic()
        self.fresh = False
        """True if this process began the cell without an earlier state."""
        order.begins_epochs = self._begin

    async def run(self) -> None:
        """Speak whenever nobody else does, until the task is cancelled."""
        while True:
            began_s = time.monotonic()
            try:
                await self._turn()
            except LOST as error:
                self._set(False)
                logger.debug("the log does not answer the speaker: %s", type(error).__name__)
            await asyncio.sleep(max(0.01, TICK_S - (time.monotonic() - began_s)))

    async def leave(self) -> None:
        """Let another process speak at once."""
        if self._order.speaks:
            self._set(False)
            try:
                await self._log.leave(self._token)
            except LOST:
                logger.warning("the speaker's lease is not released: it ends by itself")

    async def _turn(self) -> None:
        order, lease_ms = self._order, int(LEASE_S * 1000)
        if not order.attached:
            self._set(False)
            return
        if not order.speaks and not await self._log.take_lease(self._token, lease_ms):
            return
        checked, check = order.shared_cell.latest_check()
        tick = LogTick(order.process, checked, check, str(self._stored()), self._full())
        if not await self._log.say(self._token, lease_ms, order.epoch, tick_bytes(tick)):
            self._set(False)
            return
        self._set(True)
        if order.differs and order.last_speaker == order.process:
            await self._begin_own(order.epoch)  # all entries of those before are read
            return
        await self._store_state()

    def _set(self, speaks: bool) -> None:
        if speaks != self._order.speaks:
            self._order.speaks, self._state = speaks, None
            logger.info("this process %s", "speaks" if speaks else "is silent")
            self._on_change(speaks)

    async def _store_state(self) -> None:
        """Take a state now and then; store it once all rows before it are in the database."""
        order = self._order
        if self._state is None and time.monotonic() - self._stated_s >= SNAPSHOT_S:
            shared = order.shared_cell
            self._state = order.epoch, shared.last, state_bytes(shared.snapshot())
            self._stated_s = time.monotonic()
        if self._state is not None and self._stored() >= self._state[1]:
            (epoch, last, state), self._state = self._state, None
            if epoch == order.epoch:
                await self._log.store_snapshot(self._token, epoch, state, last)

    # --- epochs -----------------------------------------------------------------------------------

    async def _begin(self, base: PresentEpoch | None) -> None:
        """Begin an epoch if the present one is lost: with this process' state, if it is the furthest."""
        order, lease_ms = self._order, int(LEASE_S * 1000)
        last = order.shared_cell.last
        if order.epoch:
            furthest = await self._log.ahead(order.process, last)
            if furthest > last:
                await self._log.leave(self._token)
                return
        elif base is not None:
            return  # another process has a state
        if not await self._log.take_lease(self._token, lease_ms):
            return
        before = order.epoch if base is None else max(order.epoch, base.epoch)
        await self._begin_own(before)

    async def _begin_own(self, before: int) -> None:
        """Begin an epoch with the state and the options of this process, which has the lease."""
        order, lease_ms = self._order, int(LEASE_S * 1000)
        last = order.shared_cell.last
        now_ms = await self._log.now_ms()
        first = EntryId(max(now_ms, last.ms + 1), 0)
        epoch = max(now_ms, before + 1)
        fresh = not order.epoch
        state = order.shared_cell.snapshot() | {"last": str(first)}
        begun = PresentEpoch(epoch, order.agreement)
        if await self._log.begin(self._token, lease_ms, begun, first, state_bytes(state), before):
            self.fresh, self._state = fresh, None
            logger.warning("epoch %d of the cell begins with the state of this process", epoch)
