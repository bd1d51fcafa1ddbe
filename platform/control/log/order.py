"""The order that the processes of a cell share: each writes events to a log, and applies what it reads.

Every process has a copy of the cell and executes the outputs itself: a process that submitted a call
reads its own entry, applies it, and knows the grant. So no process answers another, and none decides
alone. One of them, the *speaker*, writes ticks and what it observes of workers
(:mod:`fairserve.platform.control.log.speaker`); without ticks nothing new is accepted, and streams in
progress continue.

Batches are numbered. After a connection is lost, those that were not read back are written again under
their numbers. If the server has lost entries that were read, a new epoch begins with the state of the
process that speaks; the others replace their state by it and write their latest batches again.

Cost of a call: about three entries of this process, and the application of all calls of all processes.
So a cell ends at the rate at which one process applies events, whatever the number of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from fairserve.engine.backoff import Backoff
from fairserve.interactions.call import Call
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.base.garbage import uncollected
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import CellEvent
from fairserve.platform.control.log.answered_calls import AnsweredCalls
from fairserve.platform.control.log.answers import AnswerBook, answers_of
from fairserve.platform.control.log.clock import LogClock
from fairserve.platform.control.log.live_processes import BEAT_TICKS
from fairserve.platform.control.log.outbox import LogOutbox
from fairserve.platform.control.log.redis_log import (
    ENTRIES_AT_ONCE,
    LOST,
    LogEntry,
    PresentEpoch,
    RedisLog,
    Where,
    cancel,
)
from fairserve.platform.control.log.shared_cell import (
    CELL_VERSION,
    Applied,
    EntryId,
    SharedCell,
)
from fairserve.platform.control.log.succession import CellMismatchError, Succession
from fairserve.platform.control.log.wire import (
    EventBatch,
    LogTick,
    UnreadableEntryError,
    batch_bytes,
    head_of,
    tick_of,
)
from fairserve.platform.control.messages import Submit
from fairserve.platform.control.order import OnOutputs

logger = logging.getLogger(__name__)

READ_MS = 500
GATHERED_S = 0.02
"""Pause between two readings while no client of this process waits for what others write."""
SUSPENDED_S = 5.0
"""Seconds between two looks at the log after which entries may have been dropped from it."""
SILENCE_S = 3.0
"""Seconds without a tick after which nothing new is accepted, and the epoch is looked for again."""
MAX_WAITING = 20_000
"""Events that wait to be written, of which new calls are rejected beyond a half."""
LOOKED_FOR_S = 1.0
"""Seconds for which a complete answer waits while this process looks for the log.

Without this wait the next call of a run, at another process, could be in the log before the end of its
parent. It is as long as a restart of Redis, and short beside an answer."""
CLOSED_S = 10.0
"""The same while a newer version takes the cell over: new calls wait for it, too."""
FIRST_RETRY_S, LAST_RETRY_S = 0.02, 0.25
"""Pauses between attempts: the last one is shorter than an election, which no process may miss."""


class LogOrder:
    """The shared :class:`~fairserve.platform.control.order.EventOrder` of one process."""

    shared = True

    def __init__(
        self,
        log: RedisLog,
        cell: Cell,
        on_outputs: OnOutputs,
        clock: LogClock,
        agreement: Mapping[str, Any],
        keys_of: Callable[[Call], Sequence[int]],
        *,
        on_replaced: Callable[[list[CallState]], None] = lambda before: None,
        on_tick: Callable[[EntryId, LogTick], None] = lambda entry, tick: None,
        on_failure: Callable[[str], None] = lambda problem: None,
        on_followed: Callable[[], None] = lambda: None,
        hurries: Callable[[], bool] = lambda: True,
        version: int = CELL_VERSION,
    ) -> None:
        """``agreement`` and ``version`` are what all processes of the cell must have in common.

        ``keys_of`` returns the block keys of a prompt, by which the other processes know it.
        ``on_replaced`` is called with the earlier calls after the state was replaced. ``on_failure``
        is called with a sentence when this process cannot apply the log any more. ``on_followed`` is
        called once this process does not apply it because a newer version decides. ``hurries`` returns
        whether a client of this process may wait for an event of another one: else entries are gathered
        for a while, because each reading costs more than applying what it returns.
        """
        self.log = log
        self.shared_cell = SharedCell(cell)
        self.clock = clock
        self.agreement, self.version = dict(agreement), version
        self.book: AnswerBook | None = None
        """Answers to processes of the former version; None in a process that never speaks."""
        self._answered: AnsweredCalls | None = None
        """The calls of this process, if a newer version decides about them."""
        self._waits_for = ""
        """Reason for which this process waits, as it was logged last."""
        self._succession = Succession(log, version)
        self.epoch = 0
        self.speaks = False
        """True while this process is the speaker; set by the speaker's task."""
        self.last_speaker = ""
        """Process that wrote the last tick that was read."""
        self.differs = False
        """True if the present epoch is of processes with other options, none of which speaks."""
        self.begins_epochs: Callable[[PresentEpoch | None], Any] | None = None
        """Begins an epoch; None in a process that never speaks."""
        self._keys_of = keys_of
        self._on_outputs = on_outputs
        self._on_replaced, self._on_tick, self._on_failure = on_replaced, on_tick, on_failure
        self._on_followed, self._hurries = on_followed, hurries
        self._awaiting = 0
        """Events of this process that somebody waits to be read back."""
        self._awaited = asyncio.Event()
        """Set when there is one more."""
        self._outbox = LogOutbox()
        self._wake = asyncio.Event()
        self._attached = asyncio.Event()
        self._away = True
        """True if the log was not found for a while, so that nobody waits for it with an answer."""
        self._rejected = False
        """True if the last attempt to write failed: who can read may still be unable to write."""
        self._looking: asyncio.TimerHandle | None = None
        """Ends the wait of complete answers, unless the log is found before."""
        self._stale = False
        """True if the state has to be replaced by the stored one."""
        self.replaced = 0
        """Number of times that the state was replaced."""
        self._behind = True
        """True if the next entries may be old ones."""
        self._attachment = 0
        """Number of times that the log was found."""
        self._made_s = time.monotonic()
        self._attached_s = 0.0
        self._looked_s = 0.0
        """Monotonic time of the last look at the log: a process that was suspended may miss entries."""
        self._ticked_s: float | None = None
        self._full = ""
        self._tasks: list[asyncio.Task[None]] = []

    # --- life -------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Get the state of the cell; wait until it has one. Raises CellMismatchError."""
        await self._attach()

    @property
    def process(self) -> str:
        """The id of this process in the log."""
        return self._outbox.process

    @property
    def attached(self) -> bool:
        """True while this process reads the log of the present epoch."""
        return self._attached.is_set()

    def start(self) -> None:
        """See the protocol. The cell is attached."""
        for work, name in ((self._follow, "log reader"), (self._write, "log writer")):
            self._tasks.append(asyncio.create_task(self._guarded(work()), name=name))

    async def close(self) -> None:
        """See the protocol: write what waits, then stop."""
        with contextlib.suppress(TimeoutError, *LOST):
            async with asyncio.timeout(2.0):
                await self.kept()
        await cancel(*self._tasks)
        self._end_waits()
        await self.log.close()

    async def _guarded(self, work: Any) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except (UnreadableEntryError, CellMismatchError) as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("the log cannot be followed")
            self._fail(f"the log cannot be followed: {type(error).__name__}")

    def _fail(self, problem: str) -> None:
        self._ticked_s = None
        self._outbox.fail(_unavailable(problem))
        self._detach()
        self._end_waits()
        logger.error("%s; this process leaves the cell", problem)
        self._on_failure(problem)

    @property
    def accepts(self) -> bool:
        """True if new calls are accepted."""
        try:
            self.require()
        except UnavailableError:
            return False
        return True

    @property
    def lag_s(self) -> float:
        """Seconds since this process has read a tick, or since it was made."""
        return time.monotonic() - (self._ticked_s or self._made_s)

    def require(self) -> None:
        """Raise UnavailableError if nothing new may be accepted."""
        if self._ticked_s is None or time.monotonic() - self._ticked_s > SILENCE_S:
            raise _unavailable("no control process speaks; nothing new is accepted until one does")
        if self._full:
            raise _unavailable(self._full)
        if len(self._outbox) > MAX_WAITING // 2:
            raise _unavailable(
                "the log accepts too few events; nothing new is accepted until it does"
            )

    # --- putting events ---------------------------------------------------------------------------

    def put(self, event: CellEvent) -> None:
        """See the protocol."""
        if self._answered is not None:
            self._answered.put(event)
        self._outbox.put(event)
        self._wake.set()

    async def applied(self, event: CellEvent) -> None:
        """See the protocol. It waits for as long as Redis does not answer."""
        if isinstance(event, Submit) and event.call.block_keys is None:
            call = copy(event.call)
            call.block_keys = self._keys_of(call)
            event = replace(event, call=call)
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._answered is not None:
            self._answered.put(event)
        self._outbox.put(event, wait)
        self._wake.set()
        self._awaiting += 1
        self._awaited.set()
        try:
            await wait
        finally:
            self._awaiting -= 1

    def end_waits(self, error: Exception) -> None:
        """See the protocol."""
        self._outbox.end_waits(error)
        if self._answered is not None:
            self._answered.end_waits(error)

    async def kept(self) -> None:
        """Wait until the events so far are in the log, but not for long while it is looked for.

        Until they are, this process has them, and writes them later. What another process puts after
        this returned is later in the log, so a call that a client sends after its parent's answer
        follows the parent.

        Weakness: not so where the log was not found in time, and where Redis has lost the events.
        """
        if not self._away:
            await self._outbox.kept()

    def _detach(self) -> None:
        """Look for the log before the next reading."""
        self._attached.clear()
        self._look()

    def _look(self, most_s: float = LOOKED_FOR_S) -> None:
        """Let complete answers wait until the log is found, but not for long."""
        if self._looking is None and not self._away:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(most_s, self._end_waits)

    def _found(self) -> None:
        """Let complete answers wait for the log again, unless it cannot be written."""
        if self._attached.is_set() and not self._rejected:
            self._away = False
            self._stop_looking()

    def _end_waits(self) -> None:
        """Let no complete answer wait for the log until it is found."""
        self._away = True
        self._stop_looking()
        self._outbox.end_kept()

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def observe(self, event: CellEvent) -> None:
        """See the protocol: the speaker reports the workers."""
        if self.speaks:
            self.put(event)

    # --- writing ----------------------------------------------------------------------------------

    async def _write(self) -> None:
        backoff, failures = Backoff(FIRST_RETRY_S, LAST_RETRY_S), 0
        while True:
            await self._wake.wait()
            await self._attached.wait()
            self._wake.clear()
            try:
                failures, self._rejected = 0, not await self._write_all()
                self._found()
            except LOST as error:
                failures, self._rejected = failures + 1, True
                self._look()
                if failures == 1:
                    logger.warning("the log is not written: %s", type(error).__name__)
                await asyncio.sleep(backoff.pause_s(failures))
                self._wake.set()

    async def _write_all(self) -> bool:
        """Write all batches; return whether the log has accepted them."""
        while (due := self._outbox.to_write()) is not None:
            number, batch = due
            attachment, follows = self._attachment, self._answered is not None
            data = batch_bytes(EventBatch(self.process, number, batch.events, follows))
            appended = await self.log.append(self.epoch, data)
            if attachment != self._attachment:
                continue  # the log is another now, or may have lost batches
            if appended == "written":
                self._outbox.wrote(number)
                continue
            if appended == "closed":  # the reader finds the next epoch, which gets the batch
                self._look(CLOSED_S)
            else:
                self._detach()  # the reader looks for the present epoch
                self._wake.set()
            return False
        return True

    # --- reading ----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        backoff, failures = Backoff(FIRST_RETRY_S, LAST_RETRY_S), 0
        while True:
            try:
                if self._silent_s() > SILENCE_S:
                    self._detach()
                if not self._attached.is_set():
                    await self._attach()
                entries = await self.log.read(self.epoch, self.shared_cell.last, READ_MS)
                looked_s, self._looked_s = self._looked_s, time.monotonic()
                if self._looked_s - looked_s > SUSPENDED_S or not await self._are_next(entries):
                    self._detach()
                    continue
                failures = 0
            except LOST as error:
                if not failures:
                    logger.warning("the log is not read: %s", type(error).__name__)
                failures += 1
                self._detach()
                await asyncio.sleep(backoff.pause_s(failures))
                continue
            for entry in entries:
                self._read(entry)
                await asyncio.sleep(0)  # an entry is applied in one turn of the event loop
                if not self._attached.is_set():
                    break
            if entries:
                await self._gather()

    async def _are_next(self, entries: Sequence[LogEntry]) -> bool:
        """Return whether entries follow the last one that was applied, so that none is missing.

        Redis is asked where some may have been dropped as old ones, or lost: not near the log's end.
        """
        behind, self._behind = self._behind, len(entries) >= ENTRIES_AT_ONCE
        if entries and not behind and not self._behind:
            return True
        return await self._where() == "there"

    async def _gather(self) -> None:
        """Let entries gather, unless somebody here waits for one."""
        if not self._awaiting and not self._hurries():
            self._awaited.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHERED_S):
                    await self._awaited.wait()

    def _read(self, entry: LogEntry) -> None:
        """Apply an entry."""
        if self._answered is not None:
            self._read_answers(entry, self._answered)
            return
        match entry.kind:
            case "b":
                self.clock.read(entry.entry)
                missing = self.shared_cell.batch(entry.entry, entry.data, self._took)
                self._outbox.read_back(self._seen())
                if missing == self.process:
                    self._write_missing()
            case "t":
                self.clock.read(entry.entry)
                self._tick(entry.entry, tick_of(entry.data))
            case "e" if int(entry.data) != self.epoch:
                self._detach()
            case "s":
                self.shared_cell.seal(entry.entry)
            case _:
                self.shared_cell.last = entry.entry
                if entry.kind == "a" and self.book is not None:
                    self.book.read(entry.data)

    def _read_answers(self, entry: LogEntry, calls: AnsweredCalls) -> None:
        """Read an entry of a newer version."""
        self.clock.read(entry.entry)
        self.shared_cell.last = entry.entry
        match entry.kind:
            case "b":
                process, number = head_of(entry.data)
                missing = self.shared_cell.passed(entry.entry, process, number)
                if process != self.process:
                    return
                calls.wrote()
                if missing is None and (batch := self._outbox.unread(number)) is not None:
                    if batch.waits:
                        calls.wait_for(entry.entry, number, batch.waits)
                    self._outbox.read_back(number)
                elif missing:
                    self._write_missing()
            case "a":
                for answer in answers_of(entry.data):
                    self._on_outputs(calls.outputs(answer))
                    calls.wake(EntryId.of(answer.entry), answer.invalid, self.process)
            case "t":
                tick = tick_of(entry.data)
                self._ticked_s, self._full = time.monotonic(), tick.full
                self._on_tick(entry.entry, tick)
                self._outbox.forget()
                self._beat(calls.tick())
            case "e" if int(entry.data) != self.epoch:
                self._detach()

    def _silent_s(self) -> float:
        """Return the seconds since the last tick, or since the log was last looked for."""
        since_s = max(self._ticked_s or 0.0, self._attached_s)
        return time.monotonic() - since_s

    def _took(self, process: str, number: int, place: int, applied: Applied) -> None:
        """Execute the outputs of an event, and wake who waits for it."""
        self._on_outputs(applied.outputs)
        if self.book is not None:
            shared = self.shared_cell
            self.book.took(shared.last, applied, shared.followed, process, number, place)
        if process != self.process:
            return
        wait = self._outbox.wait_of(number, place)
        if wait is None:
            if applied.error is not None:
                logger.warning(
                    "%s was not applied: %s", type(applied.event).__name__, applied.error
                )
        elif not wait.done():
            if applied.error is None:
                wait.set_result(None)
            else:
                wait.set_exception(applied.error)

    def _tick(self, entry: EntryId, tick: LogTick) -> None:
        if self.shared_cell.differs(tick):
            logger.error(
                "the outputs of this process differ from those of %s; the state is read again",
                tick.speaker,
            )
            self._stale = True
            self._detach()
        self._ticked_s, self._full = time.monotonic(), tick.full
        self.last_speaker = tick.speaker
        applied = self.shared_cell.tick(entry, tick)
        self._on_outputs(applied.outputs)
        if self.book is not None:
            self.book.took(entry, applied, self.shared_cell.followed)
        self._on_tick(entry, tick)
        self._outbox.forget()
        self._beat(self.shared_cell.silent_ticks(self.process))

    def _beat(self, silent_ticks: int) -> None:
        """Write an empty batch if the cell would take this process for a lost one soon."""
        if silent_ticks >= BEAT_TICKS and self._outbox.add_empty(self._seen()):
            self._wake.set()

    def _seen(self) -> int:
        """Return the number of the last batch of this process that the cell has."""
        return self.shared_cell.seen(self.process)

    # --- the epoch --------------------------------------------------------------------------------

    async def _attach(self) -> None:
        """Join the present epoch, or begin one where that is this process' part."""
        while True:
            base = await self.log.base()
            if base is not None and base.version != self.version:
                if base.version > self.version and await self._follow_answers(base):
                    break
                if base.version > self.version or not await self._succeeds(base):
                    await asyncio.sleep(LAST_RETRY_S)
                    continue
            self.differs = base is not None and (
                base.version != self.version or base.agreement != self.agreement
            )
            if (
                base is not None
                and self.differs
                and base.version == self.version
                # A control process follows those that differ if none of them speaks any more.
                and (self.begins_epochs is None or await self.log.has_speaker(self.process))
            ):
                raise CellMismatchError(_difference(base.agreement, self.agreement))
            if base is not None and base.epoch == self.epoch and not self._stale:
                where = await self._where()
                if where == "there" or (where == "trimmed" and await self._replace(base.epoch)):
                    break
                if where == "lost":  # others may have read less: they are to see it, too
                    await self.log.end(self.epoch)
            elif base is not None and base.epoch >= self.epoch and await self._replace(base.epoch):
                break
            if self.begins_epochs is not None:
                await self.begins_epochs(base)
            elif base is None:
                self._wait_for("no control process has begun the cell")
            await asyncio.sleep(FIRST_RETRY_S)
        self._repeat()
        self._stale = False
        self._attached_s = self._looked_s = time.monotonic()
        self._behind = True
        self._attached.set()
        self._found()
        self._wake.set()

    # --- other versions ---------------------------------------------------------------------------

    def _wait_for(self, what: str) -> None:
        """Take no part; log why, once."""
        self._ticked_s = None
        if what != self._waits_for:
            self._waits_for = what
            logger.warning("this process waits: %s", what)

    async def _succeeds(self, base: PresentEpoch) -> bool:
        """Return whether this process may take the cell over from the former version."""
        if self.begins_epochs is None:
            self._wait_for(f"version {base.version} speaks, and control is to begin {self.version}")
            return False
        self._wait_for(f"version {base.version} of the cell hands over to {self.version}")
        return await self._succession.may_begin(base, self.process)

    async def _follow_answers(self, base: PresentEpoch) -> bool:
        """Continue without deciding, if this process has calls; return whether it does."""
        if self.begins_epochs is not None or not self.epoch:
            self._wait_for(f"version {base.version} of the cell decides, and it has {self.version}")
            return False
        if base.epoch == self.epoch and await self._where() == "there":
            return True
        state = await self.log.snapshot(base.epoch)
        if state is None:
            return False
        # Only a sealed log was read to its end.
        missed = self._answered is not None or self.shared_cell.sealed is None
        self.epoch = base.epoch
        self.shared_cell.pass_over(state)
        self.clock.read(self.shared_cell.last)
        if self._answered is None:
            logger.warning("version %d of the cell decides, and answers here", base.version)
            self._on_followed()
            self._answered = AnsweredCalls(self.shared_cell.cell, self.clock)
            for event in self._outbox.not_read():
                self._answered.put(event)
        if missed:
            self._answered.wake(self.shared_cell.last)
            self._outbox.passed(self._seen())
            for event in self._answered.requeues():
                self.put(event)
        return True

    async def _where(self) -> Where:
        return await self.log.where(self.epoch, self.shared_cell.last)

    def _repeat(self) -> None:
        """Write again what was written and not read back: it may be lost. The cell ignores the rest."""
        self._outbox.rewrite(self._seen())
        self._attachment += 1
        self._wake.set()

    def _write_missing(self) -> None:
        """Write again what the cell lacks before a batch that was read.

        A new id begins with batch 1, if earlier ones are no longer known here: they were read back so
        long ago that the state that lacks them is older, or that the cell has forgotten this process.
        """
        if not self._outbox.continues(self._seen()):
            logger.warning("the cell has not seen the earlier batches of this process")
            self._outbox.rename()
        self._repeat()

    async def _replace(self, epoch: int) -> bool:
        """Replace the state by that of an epoch; return false if it is not there.

        Outputs of entries that this process has not read are never executed: who waits for an event in
        them is woken, without its error.
        """
        with uncollected(stays=True):
            state = await self.log.snapshot(epoch)
            if state is None:
                return False
            before = list(self.shared_cell.cell.calls)
            self.shared_cell.restore(state)
        self.epoch, self.replaced = epoch, self.replaced + 1
        self.clock.read(self.shared_cell.last)
        self._on_replaced(before)
        self._outbox.passed(self._seen())
        logger.info("epoch %d of the cell, after entry %s", epoch, self.shared_cell.last)
        return True


def _unavailable(message: str) -> UnavailableError:
    return UnavailableError(message, code="log_unavailable", headers={"Retry-After": "2"})


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    names = sorted({*theirs, *ours})
    found = [
        f"{name} is {ours.get(name)!r} here and {theirs.get(name)!r} there"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]
    return (
        "the other processes of the cell would decide otherwise: "
        + "; ".join(found)
        + ". Make them equal, or stop the others first"
    )
