"""Waiting for a database that is away, so that an outage costs no attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from fairserve.engine.backoff import Backoff

AWAY_S = 300.0
"""For longer nobody waits: then it counts as a lost attempt."""
_BACKOFF = Backoff(0.1, 5.0)

T = TypeVar("T")


class StoppedError(Exception):
    """The process is to stop."""


class Patience:
    """Does things again while the database does not answer, until the process is to stop."""

    def __init__(
        self, stopping: Callable[[], bool], pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._stopping = stopping
        self._pause = pause

    def __call__(self, act: Callable[[], T]) -> T:
        """What ``act`` returns. Raises StoppedError in a wait, or after ``AWAY_S`` what it raises."""
        waited_s, failures = 0.0, 0
        while True:
            try:
                return act()
            except (InterfaceError, OperationalError):
                if waited_s >= AWAY_S:
                    raise
            self.check()
            failures += 1
            pause_s = _BACKOFF.pause_s(failures)
            self._pause(pause_s)
            waited_s += pause_s

    def check(self) -> None:
        """Raise StoppedError if the process is to stop."""
        if self._stopping():
            raise StoppedError
