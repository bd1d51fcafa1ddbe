"""The speaker of a cell: the control process that writes ticks and begins epochs.

It holds a lease in Redis, which each tick renews. Another control process takes over once the lease has
run out; it has read the same log, so there is nothing to hand over. Two that believe to speak are
harmless: only the holder of the lease writes a tick, and rows are equal whoever stores them.

States are stored by the processes that do not speak; by the speaker where there is no other. A copy of
the process makes them, because one of many runs takes seconds. One is stored only after the rows of its
entries are in the database: a process that begins with it derives all later rows again from the log, so
no row depends on one process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from fairserve.platform.base.forked import ForkedResult
from fairserve.platform.base.garbage import uncollected
from fairserve.platform.control.log.answers import AnswerBook, answer_bytes
from fairserve.platform.control.log.order import LogOrder
from fairserve.platform.control.log.redis_log import (
    LOST,
    PresentEpoch,
    RedisLog,
    cancel,
    state_bytes,
)
from fairserve.platform.control.log.shared_cell import EntryId
from fairserve.platform.control.log.wire import LogTick, tick_bytes
from fairserve.platform.control.order import TICK_S

logger = logging.getLogger(__name__)

LEASE_S = 3.0
"""Seconds after which another process speaks: less, and a starved machine loses its lease at random."""
SNAPSHOT_S = 20.0
ROWS_S = 2.0
"""Longest wait of a newer version for the rows of this one, in seconds: this process has them."""
AWAY_S = 30.0
"""Seconds without ticks, half a lease of a call, after which the next one is late by ``SETTLED_S``."""
SETTLED_S = 2.0
"""Seconds in which the other processes find the log, and write the progress of their calls."""


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
        on_begun: Callable[[EntryId], None] = lambda entry: None,
    ) -> None:
        """``stored`` returns the entry up to which this process knows all rows to be in the database.

        ``full`` returns why nothing new may be accepted, else "". ``on_change`` is called when this
        process begins or ceases to speak, and ``on_begun`` when it has begun an epoch at an entry.
        """
        self._log, self._order = log, order
        self._token = order.process
        self._stored, self._full = stored, full
        self._on_change, self._on_begun = on_change, on_begun
        self._state: tuple[int, EntryId, ForkedResult] | None = None
        """A state that is not stored yet: how often the copy was replaced before, and its last entry."""
        self._stored_s = time.monotonic()
        """Time of the last stored state, or of the start."""
        self.fresh = False
        """True if this process began the cell without an earlier state."""
        self._book = order.book = AnswerBook()
        self._sealed_s: float | None = None
        """Monotonic time at which this process saw the end of its log."""
        self._handed_over = False
        self._spoken_s: float | None = None
        """Monotonic time at which a process spoke, as far as this one has seen."""
        self._ticks_from_s: float | None = None
        """Monotonic time of the first tick of this process, once it has the lease."""
        self._ended = 0
        """Epoch after which this process has begun one: it may not have read that yet."""
        order.begins_epochs = self._begin

    async def run(self) -> None:
        """Speak whenever nobody else does, until the task is cancelled.

        Raises what neither the server's absence nor another speaker explains, also of writing answers.
        """
        answering = asyncio.create_task(self._answer(), name="answers")
        try:
            while True:
                began_s = time.monotonic()
                if answering.done():
                    answering.result()
                try:
                    await self._turn()
                except LOST as error:
                    self._set(False)
                    logger.debug("the log does not answer the speaker: %s", type(error).__name__)
                await asyncio.sleep(max(0.01, TICK_S - (time.monotonic() - began_s)))
        finally:
            self._drop_state()
            await cancel(answering)

    async def _answer(self) -> None:
        """Write the answers to processes of the former version."""
        while True:
            await self._book.due.wait()
            self._book.due.clear()
            if not self._order.speaks or self._order.differs:
                continue  # the next turn in which it does
            if not await self._write_answers():
                # Later answers must not precede these, which may not be in the log.
                self._book.write_again()
                await asyncio.sleep(TICK_S)

    async def _write_answers(self) -> bool:
        """Write all answers that are due; return whether they are in the log."""
        try:
            while answers := self._book.next():
                data = answer_bytes(answers)
                if not await self._log.answer(self._token, self._order.epoch, data):
                    return False
        except LOST:
            return False
        return True

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
        if not order.speaks and (
            (self._handed_over and await self._log.has_successor(order.version))
            or not await self._log.take_lease(self._token, lease_ms)
        ):
            self._spoken_s, self._ticks_from_s = time.monotonic(), None
            if order.shared_cell.sealed is None:
                await self._store_state()
            return
        if not order.speaks and await self._waits_for_progress():
            return
        checked, check = order.shared_cell.latest_check()
        tick = LogTick(order.process, checked, check, str(self._stored()), self._full())
        if not await self._log.say(self._token, lease_ms, order.epoch, tick_bytes(tick)):
            self._set(False)
            return
        self._set(True)
        self._spoken_s = time.monotonic()
        if order.epoch == self._ended:
            return
        if order.differs and order.last_speaker == order.process:
            await self._begin_own(order.epoch)  # all entries of those before are read
        elif order.shared_cell.sealed is not None:
            await self._hand_over()
        elif await self._log.has_successor(order.version):
            await self._log.seal(self._token, order.epoch)
        else:
            if len(self._book):
                self._book.write_again()
            await self._store_state()

    async def _waits_for_progress(self) -> bool:
        """Return whether the first tick is not due yet.

        A tick ends the calls whose leases are over. While Redis is away no process can renew them, so
        all get the time to do so before the first tick after that.
        """
        now_s = time.monotonic()
        if self._ticks_from_s is None:
            away_s = await self._log.now_ms() / 1000 - self._order.shared_cell.last.at_s
            if self._spoken_s is not None:  # the last entry may be younger, or begin an epoch
                away_s = max(away_s, now_s - self._spoken_s)
            self._ticks_from_s = now_s + (SETTLED_S if away_s > AWAY_S else 0.0)
        return now_s < self._ticks_from_s

    def _set(self, speaks: bool) -> None:
        if not speaks:
            self._ticks_from_s = None
        if speaks != self._order.speaks:
            self._order.speaks = speaks
            logger.info("this process %s", "speaks" if speaks else "is silent")
            self._on_change(speaks)

    async def _store_state(self) -> None:
        """Take a state now and then; store it once all rows before it are in the database.

        It lacks no answer: a process that begins with it continues with those of later entries.
        """
        order, last = self._order, self._order.shared_cell.last
        due = time.monotonic() - self._stored_s >= SNAPSHOT_S
        if self._state is None and due and not len(self._book):
            if order.speaks and not await self._has_waited(last):
                return
            self._state = order.replaced, order.shared_cell.last, ForkedResult(self._state_of)
        if self._state is None:
            return
        replaced, last, made = self._state
        if made.done and self._stored() >= last:
            self._state, self._stored_s = None, time.monotonic()
            try:
                state = made.result()
            except ChildProcessError as error:
                logger.warning("no state is stored for %g s more: %s", SNAPSHOT_S, error)
                return
            # Else it may be of a copy that differed, or of another epoch.
            if replaced == order.replaced:
                await self._log.store_snapshot(order.epoch, state, last, kept_s=SNAPSHOT_S / 2)

    def _drop_state(self) -> None:
        """Forget a state that is not stored yet."""
        if self._state is not None:
            self._state[2].end()
            self._state = None

    def _state_of(self, **changes: Any) -> bytes:
        """Return the state of this process, with changes, as it is stored."""
        with uncollected():
            return state_bytes(self._order.shared_cell.snapshot() | changes)

    async def _has_waited(self, last: EntryId) -> bool:
        """Return whether no other process stores states: with many runs a fork takes some time."""
        stored = await self._log.stored()
        return stored is not None and last.at_s - stored.at_s >= 2 * SNAPSHOT_S

    # --- versions ---------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        """Store the state at the end of the log for a newer version, and be silent.

        The rows before it are in the database, unless that takes too long: then this process writes them
        while it lives. If the newer version is gone this one begins an epoch, and continues.
        """
        order, now_s = self._order, time.monotonic()
        sealed = order.shared_cell.sealed
        assert sealed is not None, "checked by the caller"
        if not await self._log.has_successor(order.version):
            await self._begin_own(order.epoch)
            return
        self._sealed_s = self._sealed_s or now_s
        if self._stored() < sealed and now_s - self._sealed_s < ROWS_S:
            return
        last, state = order.shared_cell.last, self._state_of()
        if await self._log.store_snapshot(order.epoch, state, last, kept_s=SNAPSHOT_S / 2):
            self._handed_over, order.speaks = True, False
            logger.warning("a newer version takes the cell over; this process is to be stopped")
            await self._log.leave(self._token)

    # --- epochs -----------------------------------------------------------------------------------

    async def _begin(self, base: PresentEpoch | None) -> None:
        """Begin an epoch if the present one is lost: with this process' state, if it is the furthest."""
        order, lease_ms = self._order, int(LEASE_S * 1000)
        last = order.shared_cell.last
        if order.epoch:
            if await self._log.ahead(order.process, last) != last:  # another is, or may be, further
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
        changes: dict[str, Any] = {"last": str(first), "sealed": None}
        if order.differs:  # all calls are those of servers that do not decide as this process does
            changes["followed"] = sorted(live.record_id for live in order.shared_cell.cell.calls)
        state = self._state_of(**changes)
        if not await self._log.take_lease(
            self._token, lease_ms
        ):  # it may have taken longer than that
            return
        begun = PresentEpoch(epoch, order.version, order.agreement)
        if await self._log.begin(self._token, lease_ms, begun, first, state, before):
            self._drop_state()
            self.fresh, self._ended = fresh, before
            self._sealed_s, self._handed_over = None, False
            self._on_begun(first)
            logger.warning("epoch %d of the cell begins with the state of this process", epoch)
