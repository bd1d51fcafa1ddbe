"""The events of one process on their way into the log: waiting, in numbered batches, read back.

A batch is known until it was read back so long ago that the server has it for good: what the server has
lost is written again under its number, and the cell ignores what it has.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Raw

from fairserve.platform.control.cell_events import CellEvent
from fairserve.platform.control.log.wire import (
    EventBatch,
    UnsharedEventError,
    batch_bytes,
    batch_of,
    event_bytes,
)
from fairserve.platform.control.messages import Progress

logger = logging.getLogger(__name__)

REPEATED_S = 60.0
"""Seconds for which a batch that was read back is kept, in case the server loses it."""
OF_BATCH = 64
"""Events of one entry: an entry is applied in one turn of the event loop."""

Wait = asyncio.Future[None]


@dataclass(slots=True)
class SentBatch:
    """A batch that was written, or is to be."""

    events: list[Raw]
    waits: list[Wait | None]
    """Those that wait for each event; empty once the batch was read back."""
    read_s: float | None = None
    """Monotonic time at which it was read back."""


@dataclass(slots=True)
class _Waiting:
    """Events to be written."""

    events: list[CellEvent] = field(default_factory=list)
    waits: list[Wait | None] = field(default_factory=list)
    progress: dict[str, int] = field(default_factory=dict)
    """Places of the calls' progress: a later one replaces it."""

    def add(self, event: CellEvent, wait: Wait | None) -> None:
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

    def take(self, most: int) -> tuple[list[CellEvent], list[Wait | None]]:
        events, waits = self.events[:most], self.waits[:most]
        self.events, self.waits = self.events[most:], self.waits[most:]
        self.progress = {
            event.call_id: place
            for place, event in enumerate(self.events)
            if isinstance(event, Progress)
        }
        return events, waits


class LogOutbox:
    """The events of this process. Belongs to the event loop."""

    def __init__(self) -> None:
        self.process = _process_id()
        """Id of this process in the log."""
        self.number = 0
        """Number of the last batch."""
        self._waiting = _Waiting()
        self._sent: dict[int, SentBatch] = {}
        """Batches by their numbers: all that were not read back, and the latest that were."""
        self._written = 0
        """Number of the last batch that is in Redis."""
        self._kept_waits: list[tuple[int, Wait]] = []
        """Those that wait until a batch is in Redis."""

    def __len__(self) -> int:
        """Return the number of events that are in no batch yet."""
        return len(self._waiting.events)

    def put(self, event: CellEvent, wait: Wait | None = None) -> None:
        """Add an event; ``wait`` gets its result once it is read back and applied."""
        self._waiting.add(event, wait)

    # --- writing ----------------------------------------------------------------------------------

    def to_write(self) -> tuple[int, SentBatch] | None:
        """Return the first batch that is not written, with its number; None if there is nothing."""
        while True:
            number = self._written + 1
            if (batch := self._sent.get(number)) is not None:
                return number, batch
            if not self._waiting.events:
                return None
            if not self._make_batch():
                self.wrote(self._written)

    def _make_batch(self) -> bool:
        """Make a batch of the first events that wait; return False if none of them can be written."""
        batch = SentBatch([], [])
        for event, wait in zip(*self._waiting.take(OF_BATCH), strict=True):
            try:
                batch.events.append(event_bytes(event))
            except UnsharedEventError as error:
                logger.error("%s", error)
                _fail(wait, error)
            else:
                batch.waits.append(wait)
        if batch.events:
            self._add_batch(batch)
        return bool(batch.events)

    def _add_batch(self, batch: SentBatch) -> None:
        self.number += 1
        self._sent[self.number] = batch

    def add_empty(self, seen: int) -> bool:
        """Add a batch without events, unless there are others after the one that the cell has seen."""
        if self._waiting.events or seen != self.number:
            return False
        self._add_batch(SentBatch([], []))
        return True

    def wrote(self, number: int) -> None:
        """Note that a batch is in Redis."""
        self._written = max(self._written, number)
        up_to = self._written if self._waiting.events or self._written < self.number else math.inf
        due = [wait for n, wait in self._kept_waits if n <= up_to]
        self._kept_waits = [each for each in self._kept_waits if each[0] > up_to]
        _wake(due)

    async def kept(self) -> None:
        """Wait until the events so far are in Redis, or until :meth:`end_kept`."""
        number = self.number + math.ceil(len(self) / OF_BATCH)
        if self._written < number:
            wait: Wait = asyncio.get_running_loop().create_future()
            self._kept_waits.append((number, wait))
            await wait

    def end_kept(self) -> None:
        """End the waits of :meth:`kept`: Redis does not answer."""
        waits, self._kept_waits = self._kept_waits, []
        _wake(wait for _, wait in waits)

    # --- reading ----------------------------------------------------------------------------------

    def unread(self, number: int) -> SentBatch | None:
        """Return a batch that was not read back; None if it was, or is not known."""
        batch = self._sent.get(number)
        return batch if batch is not None and batch.read_s is None else None

    def wait_of(self, number: int, place: int) -> Wait | None:
        """Return what waits for an event of a batch."""
        batch = self._sent.get(number)
        return batch.waits[place] if batch is not None and place < len(batch.waits) else None

    def read_back(self, number: int) -> None:
        """Note that the cell has a batch."""
        if (batch := self.unread(number)) is not None:
            batch.waits, batch.read_s = [], time.monotonic()
            self.wrote(number)

    def passed(self, seen: int) -> None:
        """Wake those that wait for events up to a batch: the state has them, and they are never read."""
        for number in self._sent:
            if number <= seen and (batch := self.unread(number)) is not None:
                _wake(batch.waits)
                self.read_back(number)

    def forget(self) -> None:
        """Drop batches that were read back so long ago that the server has them for good."""
        before_s = time.monotonic() - REPEATED_S
        while self._sent:
            number, batch = next(iter(self._sent.items()))
            if batch.read_s is None or batch.read_s > before_s:
                return
            del self._sent[number]

    # --- faults -----------------------------------------------------------------------------------

    def rewrite(self, seen: int) -> None:
        """Write again what the cell has not seen: it may be lost, also if it was read back."""
        self._written = max(seen, self._first() - 1)
        for number, batch in self._sent.items():
            if number > seen:
                batch.read_s = None  # :meth:`forget` would drop an old one before it is written

    def continues(self, seen: int) -> bool:
        """Return whether the batch is known that follows the last one that the cell has seen."""
        return seen + 1 in self._sent

    def rename(self) -> None:
        """Take a new id in the log, and number the known batches from 1."""
        before = self._first() - 1
        self.process, self.number = _process_id(), self.number - before
        self._sent = dict(enumerate(self._sent.values(), start=1))
        self._kept_waits = [(number - before, wait) for number, wait in self._kept_waits]

    def _first(self) -> int:
        """Return the number of the first batch that is known."""
        return next(iter(self._sent), self.number + 1)

    def not_read(self) -> list[CellEvent]:
        """Return the events that wait to be written or to be read back."""
        found: list[CellEvent] = []
        for number, batch in self._sent.items():
            if batch.read_s is None:
                found += batch_of(batch_bytes(EventBatch("", number, batch.events))).events
        return found + self._waiting.events

    def end_waits(self, error: Exception) -> None:
        """Give an error to all that wait for events, which are written as before."""
        of_batches = (wait for batch in self._sent.values() for wait in batch.waits)
        for wait in (*self._waiting.waits, *of_batches):
            _fail(wait, error)

    def fail(self, error: Exception) -> None:
        """Give an error to all that wait for events; drop those that are in no batch."""
        self.end_waits(error)
        self._waiting = _Waiting()


def _process_id() -> str:
    return uuid.uuid4().hex[:12]


def _wake(waits: Iterable[Wait | None]) -> None:
    for wait in waits:
        if wait is not None and not wait.done():
            wait.set_result(None)


def _fail(wait: Wait | None, error: Exception) -> None:
    if wait is not None and not wait.done():
        wait.set_exception(error)
