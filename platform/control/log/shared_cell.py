"""A cell that several processes apply to one log, each for itself: same entries, same state.

Entries are read in the log's order; the time of an entry is its id, so that all have one clock. A
process that is not sure whether a batch has reached the log writes it again under its number; whoever
reads it twice ignores the second. Everything here follows from the entries alone. No I/O.

Cost beside the cell's: a check sum of each output, about 1 us, and reading an event, about 25 us.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CellEvent,
    DecodedTokensDue,
    JournalRow,
    Output,
)
from fairserve.platform.control.log.wire import LogTick, batch_of
from fairserve.platform.control.messages import Grant, Progress
from fairserve.scheduling import events as ev

FORGOTTEN_S = 3600.0
"""Seconds after which a process that wrote nothing is forgotten; it repeats batches for far less."""


CHECKS = 64
"""Ticks whose check sums are kept: those of 16 seconds."""


class Applied(NamedTuple):
    """An event that was applied, and what became of it."""

    event: CellEvent
    outputs: Sequence[Output]
    error: Exception | None
    """Why it was invalid; it has changed nothing then."""


OnEvent = Callable[[str, int, int, Applied], None]
"""Receives an event: the process that put it, the number of the batch, and the place in it."""


class EntryId(NamedTuple):
    """Id of an entry: milliseconds UTC, and a number within one millisecond."""

    ms: int
    number: int

    @classmethod
    def of(cls, text: str | bytes) -> EntryId:
        """Return the id of its text, ``ms-number``. Raises ValueError."""
        ms, _, number = (text.decode() if isinstance(text, bytes) else text).partition("-")
        return cls(int(ms), int(number))

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"

    @property
    def at_s(self) -> float:
        """Time of the entry, in UTC epoch seconds."""
        return self.ms / 1000


NO_ENTRY = EntryId(0, 0)


class SharedCell:
    """A cell with the batches that it has seen of each process."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        """Read-only: it changes by entries."""
        self.last = NO_ENTRY
        """The last entry that was applied."""
        self.check = 0
        """Check sum of all outputs: processes that read the same entries have the same one."""
        self._checks: dict[str, int] = {}
        """Check sums before the latest ticks, by the ids of these."""
        self._seen: dict[str, tuple[int, float]] = {}
        """Number of the last batch of each process, and its time."""

    def seen(self, process: str) -> int:
        """Return the number of the last batch of a process; 0 if none is known."""
        return self._seen.get(process, (0, 0.0))[0]

    def batch(self, entry: EntryId, data: bytes, on_event: OnEvent) -> str:
        """Apply a batch, unless it was applied before or follows one that is missing.

        Return the process if a batch of it is missing, else "". ``on_event`` gets process, number and
        place in the batch of each event, right after the event. Raises UnreadableEntryError before
        anything has changed.
        """
        process, number, events = batch_of(data)
        self.last, seen = entry, self.seen(process)
        if number != seen + 1:
            return process if number > seen else ""
        self._seen[process] = (number, entry.at_s)
        progressed = False
        for place, event in enumerate(events):
            on_event(process, number, place, self._apply(event, entry.at_s))
            progressed = progressed or isinstance(event, Progress)
        if progressed:
            on_event(process, number, len(events), self._apply(DecodedTokensDue(), entry.at_s))
        return ""

    def tick(self, entry: EntryId, tick: LogTick) -> Applied:
        """Pass the time."""
        self.last = entry
        self._checks[str(entry)] = self.check
        if len(self._checks) > CHECKS:
            del self._checks[next(iter(self._checks))]
        for process in [p for p, (_, at) in self._seen.items() if entry.at_s - at > FORGOTTEN_S]:
            del self._seen[process]
        return self._apply(ev.Tick(), entry.at_s)

    def latest_check(self) -> tuple[str, int]:
        """Return the id of the last tick, with the check sum before it."""
        return next(reversed(self._checks.items()), ("", 0))

    def differs(self, tick: LogTick) -> bool:
        """Return whether the speaker had other outputs than this process, at a tick of both."""
        own = self._checks.get(tick.checked)
        return own is not None and own != tick.check

    def _apply(self, event: CellEvent, now_s: float) -> Applied:
        error = None
        try:
            self.cell.apply(event, now_s)
        except (FairServeError, ValueError, KeyError) as problem:
            error = problem
        for text in _checked(self.cell.outputs):
            self.check = zlib.crc32(text.encode(), self.check)
        return Applied(event, self.cell.outputs, error)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state after the last entry as plain JSON values. O(state)."""
        return {
            "cell": self.cell.snapshot(),
            "last": str(self.last),
            "check": self.check,
            "seen": {process: list(each) for process, each in self._seen.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a snapshot of a cell with the same options and seed."""
        self.cell.restore(state["cell"])
        self.last = EntryId.of(state["last"])
        self.check, self._checks = state["check"], {}
        self._seen = {process: (number, at) for process, (number, at) in state["seen"].items()}


def _checked(outputs: Sequence[Output]) -> Iterator[str]:
    """Yield what the check sum covers: who gets which worker, and which rows there are."""
    for output in outputs:
        match output:
            case CallAnswer(record_id, Grant() as grant):
                yield f"{record_id} {grant.worker_id}"
            case CallAnswer(record_id, answer):
                yield f"{record_id} {type(answer).__name__}"
            case JournalRow():
                yield f"{output.kind} {output.key}"
