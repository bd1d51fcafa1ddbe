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

from fairserve.interactions.call import Call
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CallChange,
    CallsLost,
    CellEvent,
    DecodedTokensDue,
    JournalRow,
    Output,
)
from fairserve.platform.control.log.live_processes import LiveProcesses
from fairserve.platform.control.log.wire import LogTick, batch_of
from fairserve.platform.control.messages import Grant, Progress, Submit
from fairserve.scheduling import events as ev

CELL_VERSION = 1
"""Version of what a copy of the cell decides: of its rules, of its state, and of the entries of the log.

Processes with equal versions share a cell, whatever else differs between their releases. A release with
the next version reads states and entries of this one. A test compares the decisions with the version."""
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
    follows: bool = False
    """True if the process that put it follows by answers."""


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
        self._processes = LiveProcesses()
        self.sealed: EntryId | None = None
        """Entry that ended this log for a newer version; nothing counts after it."""
        self.followed: set[str] = set()
        """Record ids of the live calls of processes that follow by answers, and of some that ended."""

    def seen(self, process: str) -> int:
        """Return the number of the last batch of a process; 0 if none is known."""
        return self._seen.get(process, (0, 0.0))[0]

    def silent_ticks(self, process: str) -> int:
        """Return the ticks since the last batch of a process with live calls; else 0."""
        return self._processes.silent_ticks(process)

    def batch(self, entry: EntryId, data: bytes, on_event: OnEvent) -> str:
        """Apply a batch, unless it was applied before or follows one that is missing.

        Return the process if a batch of it is missing, else "". ``on_event`` gets process, number and
        place in the batch of each event, right after the event. Raises UnreadableEntryError before
        anything has changed.
        """
        if self.sealed is not None:
            self.last = entry
            return ""
        process, number, events, follows = batch_of(data)
        missing = self.passed(entry, process, number)
        if missing is not None:
            return missing
        self._processes.wrote(process)
        progressed = False
        for place, event in enumerate(events):
            if isinstance(event, Submit):
                self._add_user(event.call)
                if follows:
                    self.followed.add(event.record_id)
            applied = self._apply(event, entry.at_s, process)._replace(follows=follows)
            on_event(process, number, place, applied)
            progressed = progressed or isinstance(event, Progress)
        if progressed:
            on_event(process, number, len(events), self._apply(DecodedTokensDue(), entry.at_s))
        return ""

    def _add_user(self, call: Call) -> None:
        """Give a call that names no user that of its run, which its server may not know yet."""
        run = self.cell.dispatcher.tracker.get(call.interaction_id)
        if run is not None and call.user == call.app:
            call.user = run.owner[2]

    def passed(self, entry: EntryId, process: str, number: int) -> str | None:
        """Note a batch; return None if it is the next one of its process.

        Else return the process if a batch before it is missing, and "" if it was there before.
        """
        self.last, seen = entry, self.seen(process)
        if number != seen + 1:
            return process if number > seen else ""
        self._seen[process] = (number, entry.at_s)
        return None

    def seal(self, entry: EntryId) -> None:
        """Let nothing count after this entry."""
        self.last = entry
        self.sealed = self.sealed or entry

    def tick(self, entry: EntryId, tick: LogTick) -> Applied:
        """Pass the time. The calls of processes that are silent or lost end before."""
        self.last = entry
        if self.sealed is not None:
            return Applied(ev.Tick(), (), None)
        if self.followed:
            self.followed &= {live.record_id for live in self.cell.calls}
        self._checks[str(entry)] = self.check
        if len(self._checks) > CHECKS:
            del self._checks[next(iter(self._checks))]
        for process in [p for p, (_, at) in self._seen.items() if entry.at_s - at > FORGOTTEN_S]:
            del self._seen[process]
        silent, lost = self._processes.tick()
        ended: list[Output] = []
        if silent:
            ended += self._apply(CallsLost(silent, silent=True), entry.at_s).outputs
        if lost:
            ended += self._apply(CallsLost(lost), entry.at_s).outputs
        ticked = self._apply(ev.Tick(), entry.at_s)
        return ticked._replace(outputs=[*ended, *ticked.outputs])

    def latest_check(self) -> tuple[str, int]:
        """Return the id of the last tick, with the check sum before it."""
        return next(reversed(self._checks.items()), ("", 0))

    def differs(self, tick: LogTick) -> bool:
        """Return whether the speaker had other outputs than this process, at a tick of both."""
        own = self._checks.get(tick.checked)
        return own is not None and own != tick.check

    def _apply(self, event: CellEvent, now_s: float, process: str = "") -> Applied:
        error = None
        try:
            self.cell.apply(event, now_s)
        except (FairServeError, ValueError, KeyError) as problem:
            error = problem
        for text in _checked(self.cell.outputs):
            self.check = zlib.crc32(text.encode(), self.check)
        for output in self.cell.outputs:
            match output:
                case CallChange(call, "accepted"):
                    self._processes.accepted(process, call.call.call_id)
                case CallChange(call, "ended" | "dropped"):
                    self._processes.ended(call.call.call_id)
        return Applied(event, self.cell.outputs, error)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state after the last entry as plain JSON values. O(state)."""
        return {
            "cell": self.cell.snapshot(),
            "last": str(self.last),
            "check": self.check,
            "seen": {process: list(each) for process, each in self._seen.items()},
            "processes": self._processes.snapshot(),
            "sealed": self.sealed and str(self.sealed),
            "followed": sorted(self.followed),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a snapshot of a cell with the same options and seed."""
        self.cell.restore(state["cell"])
        self.check, self._checks = state["check"], {}
        self.sealed = None if state["sealed"] is None else EntryId.of(state["sealed"])
        self.followed = set(state["followed"])
        self._processes.restore(state["processes"])
        self.pass_over(state)

    def pass_over(self, state: Mapping[str, Any]) -> None:
        """Continue after a snapshot of a newer version, of which only the place in the log is read."""
        self.last = EntryId.of(state["last"])
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
