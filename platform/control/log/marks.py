"""Marks of how far the rows of a cell are in the database, and the parts of a process without rows.

A control process writes a mark into its journal for each tick. The speaker's ledger reports the last
mark before which all rows are stored, and its ticks spread it: the journals of the others are dropped up
to there. An API process has neither journal nor ledger, as every control process makes the same rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from fairserve.platform.control.journal.entries import Kind
from fairserve.platform.control.journal.journal import Journal, JournalUnavailableError
from fairserve.platform.control.log.shared_cell import NO_ENTRY, EntryId
from fairserve.platform.control.log.wire import LogTick

LATE_S = 10.0
"""Seconds by which the speaker's ledger may be behind before it counts as waiting."""


class StoredMarks:
    """The marks of one process; safe from any thread."""

    def __init__(self) -> None:
        self.speaks = False
        """True while this process is to write the rows of all entries."""
        self._begun = NO_ENTRY
        """Entry at which this process began an epoch: earlier rows may be in its journal alone."""
        self._own = NO_ENTRY
        """Entry up to which this process has stored the rows itself."""
        self._changed = threading.Condition()
        self._stored = NO_ENTRY
        self.last_tick = NO_ENTRY
        self.last_read: Callable[[], EntryId] = lambda: self.last_tick
        """Returns the last entry that this process has read; its rows may follow the last tick."""

    @property
    def writes(self) -> bool:
        """True while this process is to write rows.

        Without speaking it writes those before an epoch that it began: other processes lack them if
        Redis lost their entries, and take them for stored.
        """
        return self.speaks or self._own < self._begun

    def began(self, entry: EntryId) -> None:
        """Note that this process began an epoch with its state, at this entry."""
        self._begun = entry

    @property
    def stored_entry(self) -> EntryId:
        """Entry up to which all rows are in the database."""
        return self._stored

    def is_stored(self, mark: str) -> bool:
        """Return whether the rows before a mark are in the database."""
        return EntryId.of(mark) <= self._stored

    def stored(self, mark: str) -> None:
        """Note that this process has written all rows before a mark."""
        self._own = max(self._own, EntryId.of(mark))
        self._are_stored(mark)

    def _are_stored(self, mark: str) -> None:
        """Note that the rows before a mark are in the database; an empty one says nothing."""
        if mark:
            with self._changed:
                self._stored = max(self._stored, EntryId.of(mark))
                self._changed.notify_all()

    def ticked(self, entry: EntryId, tick: LogTick) -> None:
        """Note a tick that was read."""
        self.last_tick = entry
        self._are_stored(tick.stored)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the rows of all entries so far are in the database; return whether they are."""
        target = self.last_read()
        with self._changed:
            return self._changed.wait_for(lambda: self._stored >= target, timeout_s)


class MarkedJournal:
    """Writes a mark of each tick into a journal."""

    def __init__(self, journal: Journal, marks: StoredMarks) -> None:
        self._journal, self._marks = journal, marks

    def ticked(self, entry: EntryId, tick: LogTick) -> None:
        """Note a tick that was read, on the event loop."""
        self._marks.ticked(entry, tick)
        self._journal.append("mark", str(entry), {})

    def full(self) -> str:
        """Return why nothing new may be accepted; empty if it may."""
        try:
            self._journal.check()
        except JournalUnavailableError as error:
            return str(error)
        return ""


class NoJournal:
    """The journal of an API process: control processes keep the rows."""

    def open(self) -> list[Any]:
        """Return no open calls."""
        return []

    def close(self) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Accept a call: the order rejects it where control cannot keep its row."""

    def append(self, kind: Kind, key: str, data: dict[str, Any]) -> int:
        """Ignore a row."""
        return 1

    async def durable(self, sequence: int) -> None:
        """Return at once: an event is in the log before its outputs are known."""

    async def written(self) -> None:
        """Return at once."""

    def sizes(self) -> tuple[int, int]:
        """Return no bytes."""
        return 0, 0


class LedgerElsewhere:
    """The ledger as an API process sees it: the speaker's, by its ticks."""

    rejected_rows = 0

    def __init__(self, marks: StoredMarks) -> None:
        self._marks = marks

    def start(self) -> None:
        """Do nothing."""

    def lag_bytes(self) -> int:
        """Return 0: the bytes are those of control."""
        return 0

    def waiting_s(self) -> float:
        """Return the seconds by which the database is behind the log; 0 below a few seconds."""
        marks = self._marks
        behind_s = marks.last_tick.at_s - marks.stored_entry.at_s
        return behind_s if marks.stored_entry != NO_ENTRY and behind_s > LATE_S else 0.0

    @property
    def waits_since_s(self) -> float | None:
        """Monotonic time since which the database accepts no rows; None while it does."""
        waiting_s = self.waiting_s()
        return time.monotonic() - waiting_s if waiting_s else None

    def flush(self, timeout_s: float) -> bool:
        """Wait until the rows of all entries so far are in the database; return whether they are."""
        return self._marks.wait(timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Return at once: no row depends on this process."""
        return True
