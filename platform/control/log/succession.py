"""The takeover of a cell from processes of the former version of its decisions.

A process announces itself. The speaker of the former version seals the log, stores the state at its end,
and is silent (:mod:`fairserve.platform.control.log.speaker`). Where none speaks any more, the log is
applied from the last stored state on, which may decide otherwise than the former processes have.
"""

from __future__ import annotations

import time

from fairserve.platform.control.log.redis_log import PresentEpoch, RedisLog
from fairserve.platform.control.log.shared_cell import EntryId

SILENT_S = 2.0
"""Seconds without a speaker after which a cell is taken over that no process has handed over."""
ANNOUNCED_MS = 5_000
"""Time for which a version that waits is known to the speaker."""


class CellMismatchError(Exception):
    """This process differs from the others of the cell. The message says in what, and what to do."""


class Succession:
    """The part of one control process that has not taken the cell over."""

    def __init__(self, log: RedisLog, version: int) -> None:
        self._log, self._version = log, version
        self._silent_since_s: float | None = None
        """Monotonic time since which no process of the former version speaks."""
        self._stored: EntryId | None = None
        """Entry of the state that was read last: it is not read again, as it may be large."""
        self._sealed = False
        """True if that one is at the end of its log."""

    async def may_begin(self, base: PresentEpoch, token: str) -> bool:
        """Ask for the cell; return whether it is this process' to continue.

        ``token`` is that of this process as a speaker. Raises CellMismatchError for too old a version.
        """
        theirs, ours = base.version, self._version
        if theirs < ours - 1:
            raise CellMismatchError(
                f"the cell has version {theirs}, and this release version {ours}, which continues only"
                f" version {ours - 1}: install a release with version {theirs + 1} first"
            )
        await self._log.announce(ours, ANNOUNCED_MS)
        if await self._log.has_speaker(besides=token):
            self._silent_since_s = None
            return False
        now_s = time.monotonic()
        self._silent_since_s = self._silent_since_s or now_s
        if now_s - self._silent_since_s > SILENT_S:
            return True
        stored = await self._log.stored()
        if stored != self._stored:
            state = await self._log.snapshot(base.epoch)
            self._sealed = state is not None and state["sealed"] is not None
            self._stored = stored
        return self._sealed
