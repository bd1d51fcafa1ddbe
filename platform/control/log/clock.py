"""The time of a cell whose processes share a log."""

from __future__ import annotations

import time
from collections.abc import Callable

from fairserve.platform.control.log.shared_cell import EntryId


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
