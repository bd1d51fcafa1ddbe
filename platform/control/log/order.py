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
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Raw

from fairserve.engine.backoff import Backoff
from fairserve.interactions.call import Call
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import CellEvent
from fairserve.platform.control.log.redis_log import (
    LOST,
    LogEntry,
    PresentEpoch,
    RedisLog,
    Where,
    cancel,
)
from fairserve.platform.control.log.shared_cell import Applied, EntryId, SharedCell
from fairserve.platform.control.log.wire import (
    EventBatch,
    LogTick,
    UnreadableEntryError,
    UnsharedEventError,
    batch_bytes,
    event_bytes,
    tick_of,
)
from fairserve.platform.control.messages import Progress, Submit
from fairserve.platform.control.order import OnOutputs

logger = logging.getLogger(__name__)

READ_MS = 500
SUSPENDED_S = 5.0
"""Seconds between two looks at the log after which entries may have been dropped from it."""
SILENCE_S = 3.0
"""Seconds without a tick after which nothing new is accepted, and the epoch is looked for again."""
REPEATED_S = 60.0
"""Seconds for which a batch that was read back is kept, in case the server loses it."""
MAX_WAITING = 20_000
"""Events that wait to be written, of which new calls are rejected beyond a half."""
FIRST_RETRY_S, LAST_RETRY_S = 0.02, 0.25
"""Pauses between attempts: the last one is shorter than an election, which no process may miss."""
OF_BATCH = 64
"""Events of one entry: an entry is applied in one turn of the event loop."""


class CellMismatchError(Exception):
    """This process differs from the others of the cell. The message says in what, and what to do."""


@dataclass(slots=True)
class _Sent:
    """A batch that was written, or is to be."""

    events: list[Raw]
    waits: list[asyncio.Future[None] | None]
    """Those that wait for each event; empty once the batch was read back."""
    read_s: float | None = None
    """Monotonic time at which it was read back."""


@dataclass(slots=True)
class _Waiting:
    """Events to be written."""

    events: list[CellEvent] = field(default_factory=list)
    waits: list[asyncio.Future[None] | None] = field(default_factory=list)
    progress: dict[str, int] = field(default_factory=dict)
    """Places of the calls' progress: a later one replaces it."""

    def add(self, event: CellEvent, wait: asyncio.Future[None] | None = None) -> None:
        if isinstance(event, Progress):
            place = self.progress.get(event.call_id)
            if place is not None:
                before = self.events[place]
                assert isinstance(before, Progress)
                if before.started == event.started:
                    self.events[place] = event
                    return
            self.progress[event.call_id] = len(self.events)
        self.events.append(event)
        self.waits.append(wait)

    def take(self, most: int) -> tuple[list[CellEvent], list[asyncio.Future[None] | None]]:
        events, waits = self.events[:most], self.waits[:most]
        self.events, self.waits = self.events[most:], self.waits[most:]
        self.progress = {
            event.call_id: place
            for place, event in enumerate(self.events)
            if isinstance(event, Progress)
        }
        return events, waits


class LogClock:
    """Time of a cell: that of the last entry, and what has passed here since. It does not go back."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._entry_s = 0.0
        self._read_s = monotonic()
        self._last_s = 0.0

    def read(self, entry: EntryId) -> None:
        """Note that an entry was read now."""
        self._entry_s, self._read_s = entry.at_s, self._monotonic()

    def __call__(self) -> float:
        """Return UTC epoch seconds, at most a tick ahead of the last entry."""
        ahead = min(0.25, self._monotonic() - self._read_s)
        self._last_s = max(self._last_s, self._entry_s + ahead)
        return self._last_s


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
    ) -> None:
        """``agreement`` is what all processes of the cell must have in common.

        ``keys_of`` returns the block keys of a prompt, by which the other processes know it.
        ``on_replaced`` is called with the earlier calls after the state was replaced. ``on_failure``
        is called with a sentence when this process cannot apply the log any more.
        """
        self.log = log
        self.shared_cell = SharedCell(cell)
        self.clock = clock
        self.agreement = dict(agreement)
        self.process = _process_id()
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
        self._waiting = _Waiting()
        self._sent: dict[int, _Sent] = {}
        """Batches by their numbers: all that were not read back, and the latest that were."""
        self._number = 0
        self._written = 0
        """Number of the last batch that is in Redis."""
        self._kept_waits: list[tuple[int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._attached = asyncio.Event()
        self._stale = False
        """True if the state has to be replaced by the stored one."""
        self._attachment = 0
        """Number of times that the log was found."""
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
        waiting, self._waiting = self._waiting, _Waiting()
        waits = [*waiting.waits, *(wait for sent in self._sent.values() for wait in sent.waits)]
        for wait in waits:
            if wait is not None and not wait.done():
                wait.set_exception(_unavailable(problem))
        self._detach()
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

    def require(self) -> None:
        """Raise UnavailableError if nothing new may be accepted."""
        if self._ticked_s is None or time.monotonic() - self._ticked_s > SILENCE_S:
            raise _unavailable("no control process speaks; nothing new is accepted until one does")
        if self._full:
            raise _unavailable(self._full)
        if len(self._waiting.events) > MAX_WAITING // 2:
            raise _unavailable(
                "the log accepts too few events; nothing new is accepted until it does"
            )

    # --- putting events ---------------------------------------------------------------------------

    def put(self, event: CellEvent) -> None:
        """See the protocol."""
        self._waiting.add(event)
        self._wake.set()

    async def applied(self, event: CellEvent) -> None:
        """See the protocol. It waits for as long as Redis does not answer."""
        if isinstance(event, Submit) and event.call.block_keys is None:
            call = copy(event.call)
            call.block_keys = self._keys_of(call)
            event = replace(event, call=call)
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(event, wait)
        self._wake.set()
        await wait

    async def kept(self) -> None:
        """Wait until the events so far are in Redis; not while Redis does not answer.

        Until it does they are in this process, which writes them then.
        """
        if not self.attached:
            return
        number = self._number + math.ceil(len(self._waiting.events) / OF_BATCH)
        if self._written >= number:
            return
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kept_waits.append((number, wait))
        await wait

    def _detach(self) -> None:
        """Look for the log before the next reading; nobody waits for it with a complete answer."""
        self._attached.clear()
        waits, self._kept_waits = self._kept_waits, []
        for _, wait in waits:
            if not wait.done():
                wait.set_result(None)

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
                await self._write_all()
                failures = 0
            except LOST as error:
                failures += 1
                if failures == 1:
                    logger.warning("the log is not written: %s", type(error).__name__)
                await asyncio.sleep(backoff.pause_s(failures))
                self._wake.set()

    async def _write_all(self) -> None:
        while True:
            number = self._written + 1
            sent = self._sent.get(number)
            if sent is None:
                if not self._waiting.events:
                    return
                sent = self._batch()
                if sent is None:
                    self._wrote(self._written)
                    continue
            attachment = self._attachment
            data = batch_bytes(EventBatch(self.process, number, sent.events))
            there = await self.log.append(self.epoch, data)
            if attachment != self._attachment:
                continue  # the log is another now, or may have lost batches
            if not there:
                self._detach()  # the reader looks for the present epoch
                self._wake.set()
                return
            self._wrote(number)

    def _wrote(self, number: int) -> None:
        self._written = max(self._written, number)
        up_to = self._written if self._waiting.events or self._written < self._number else math.inf
        due = [wait for n, wait in self._kept_waits if n <= up_to]
        self._kept_waits = [each for each in self._kept_waits if each[0] > up_to]
        for wait in due:
            if not wait.done():
                wait.set_result(None)

    def _batch(self) -> _Sent | None:
        """Make a batch of the first events that wait; None if none of them can be written."""
        sent = _Sent([], [])
        for event, wait in zip(*self._waiting.take(OF_BATCH), strict=True):
            try:
                sent.events.append(event_bytes(event))
            except UnsharedEventError as error:
                logger.error("%s", error)
                if wait is not None and not wait.done():
                    wait.set_exception(error)
            else:
                sent.waits.append(wait)
        if not sent.events:
            return None
        self._number += 1
        self._sent[self._number] = sent
        return sent

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
                if self._looked_s - looked_s > SUSPENDED_S or (
                    not entries and await self._where() == "lost"
                ):
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

    def _read(self, entry: LogEntry) -> None:
        """Apply an entry."""
        match entry.kind:
            case "b":
                self.clock.read(entry.entry)
                missing = self.shared_cell.batch(entry.entry, entry.data, self._took)
                if missing == self.process:
                    self._write_missing()
            case "t":
                self.clock.read(entry.entry)
                self._tick(entry.entry, tick_of(entry.data))
            case "e" if int(entry.data) != self.epoch:
                self._detach()
            case _:
                self.shared_cell.last = entry.entry

    def _silent_s(self) -> float:
        """Return the seconds since the last tick, or since the log was last looked for."""
        since_s = max(self._ticked_s or 0.0, self._attached_s)
        return time.monotonic() - since_s

    def _took(self, process: str, number: int, place: int, applied: Applied) -> None:
        """Execute the outputs of an event, and wake who waits for it."""
        self._on_outputs(applied.outputs)
        if process != self.process:
            return
        sent = self._sent.get(number)
        if sent is None or place >= len(sent.waits):
            return
        wait = sent.waits[place]
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
        if place == len(sent.waits) - 1:
            self._read_back(number, sent)

    def _read_back(self, number: int, sent: _Sent) -> None:
        sent.waits, sent.read_s = [], time.monotonic()
        self._wrote(number)

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
        self._on_outputs(self.shared_cell.tick(entry, tick).outputs)
        self._on_tick(entry, tick)
        self._forget_batches()

    def _forget_batches(self) -> None:
        """Drop batches that were read back so long ago that the server has them for good."""
        before_s = time.monotonic() - REPEATED_S
        while self._sent:
            number, sent = next(iter(self._sent.items()))
            if sent.read_s is None or sent.read_s > before_s:
                return
            del self._sent[number]

    # --- the epoch --------------------------------------------------------------------------------

    async def _attach(self) -> None:
        """Join the present epoch, or begin one where that is this process' part."""
        while True:
            base = await self.log.base()
            self.differs = base is not None and base.agreement != self.agreement
            if (
                base is not None
                and self.differs
                # A control process follows those that differ if none of them speaks any more.
                and (self.begins_epochs is None or await self.log.has_speaker())
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
            await asyncio.sleep(FIRST_RETRY_S)
        self._repeat()
        self._stale = False
        self._attached_s = self._looked_s = time.monotonic()
        self._attached.set()
        self._wake.set()

    async def _where(self) -> Where:
        return await self.log.where(self.epoch, self.shared_cell.last)

    def _repeat(self) -> None:
        """Write again what was written and not read back: it may be lost. The cell ignores the rest."""
        first = next(iter(self._sent), self._number + 1)
        self._written = max(self.shared_cell.seen(self.process), first - 1)
        self._attachment += 1
        self._wake.set()

    def _write_missing(self) -> None:
        """Write again what the cell lacks before a batch that was read.

        A new id begins with batch 1, if earlier ones are no longer known here: they were read back so
        long ago that the state that lacks them is older, or that the cell has forgotten this process.
        """
        if self.shared_cell.seen(self.process) + 1 not in self._sent:
            logger.warning("the cell has not seen the earlier batches of this process")
            first = next(iter(self._sent), self._number + 1)
            self.process, self._number = _process_id(), self._number - first + 1
            self._sent = dict(enumerate(self._sent.values(), start=1))
            self._kept_waits = [(number - first + 1, wait) for number, wait in self._kept_waits]
        self._repeat()

    async def _replace(self, epoch: int) -> bool:
        """Replace the state by that of an epoch; return false if it is not there.

        Outputs of entries that this process has not read are never executed: who waits for an event in
        them is woken, without its error.
        """
        state = await self.log.snapshot(epoch)
        if state is None:
            return False
        before = list(self.shared_cell.cell.calls)
        self.shared_cell.restore(state)
        self.epoch = epoch
        self.clock.read(self.shared_cell.last)
        self._on_replaced(before)
        for number, sent in self._sent.items():
            if sent.read_s is None and number <= self.shared_cell.seen(self.process):
                for wait in sent.waits:
                    if wait is not None and not wait.done():
                        wait.set_result(None)
                self._read_back(number, sent)
        logger.info("epoch %d of the cell, after entry %s", epoch, self.shared_cell.last)
        return True


def _process_id() -> str:
    return uuid.uuid4().hex[:12]


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
