"""The processes of a cell that have calls, and which of them are lost.

A process with live calls writes a batch every few ticks, an empty one if it has nothing else to write.
After ``SILENT_TICKS`` without a batch its queued calls end: they would take places of workers for
nobody. After ``LOST_TICKS`` it counts as lost, and its running calls end, too: they would keep places at
workers, and the limits of their clients. Silence is counted in ticks, not in seconds: while Redis is
away nobody can write, and there are no ticks either.

Everything follows from the log. Cost: O(1) per batch and per step of a call; O(silent processes) per
tick, and O(its calls) for a process that becomes silent or lost.

Weakness: a process that was suspended, or cut off from Redis alone, is not known from a dead one. After
``LOST_TICKS`` it stops its calls when it reads the log again; of those that ended in between, the rows
have the usage that it had reported before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

BEAT_TICKS = 8
"""Ticks without a batch after which a process with calls writes an empty one."""
SILENT_TICKS = 40
"""Ticks without a batch after which nobody waits for a process' queued calls: those of 10 seconds."""
LOST_TICKS = 120
"""Ticks without a batch after which a process is lost: those of 30 seconds."""


class LiveProcesses:
    """Live calls by process."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, None]] = {}
        """Ids of live calls by process, in the order of their acceptance; no entry is empty."""
        self._process_of: dict[str, str] = {}
        self._written: OrderedDict[str, int] = OrderedDict()
        """Tick of the last batch of each process that is watched, the oldest first."""
        self._tick = 0

    def wrote(self, process: str) -> None:
        """Note a batch of a process."""
        if process in self._calls:
            self._written[process] = self._tick
            self._written.move_to_end(process)

    def accepted(self, process: str, call_id: str) -> None:
        """Add a call, which is in the latest batch of all."""
        self._calls.setdefault(process, {})[call_id] = None
        self._process_of[call_id] = process
        self.wrote(process)

    def ended(self, call_id: str) -> None:
        """Remove a call."""
        process = self._process_of.pop(call_id)
        calls = self._calls[process]
        del calls[call_id]
        if not calls:
            del self._calls[process]
            self._written.pop(process, None)

    def tick(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Pass a tick; return the calls of the processes that are silent, and lost, from now on."""
        self._tick += 1
        silent: list[str] = []
        lost: list[str] = []
        for process, written in list(self._written.items()):
            ticks = self._tick - written
            if ticks < SILENT_TICKS:
                break
            if ticks == SILENT_TICKS:
                silent += self._calls[process]
            if ticks >= LOST_TICKS:
                del self._written[process]
                lost += self._calls[process]
        return tuple(silent), tuple(lost)

    def silent_ticks(self, process: str) -> int:
        """Return the ticks since the last batch of a process; 0 for one that is not watched."""
        return self._tick - self._written.get(process, self._tick)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "calls": {process: [*calls] for process, calls in self._calls.items()},
            "written": [*self._written.items()],
            "tick": self._tick,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._calls = {process: dict.fromkeys(calls) for process, calls in state["calls"].items()}
        self._process_of = {
            call_id: process for process, calls in self._calls.items() for call_id in calls
        }
        self._written = OrderedDict((process, tick) for process, tick in state["written"])
        self._tick = state["tick"]
