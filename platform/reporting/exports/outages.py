"""Retries while the database is down, so that an outage costs no attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from fairserve.engine.backoff import Backoff

MAX_WAIT_S = 300.0
"""Seconds of waiting after which the error is raised; the attempt then counts as lost."""
_BACKOFF = Backoff(0.1, 5.0)

T = TypeVar("T")


class StoppedError(Exception):
    """The process has to stop."""


class RetryWhileDbDown:
    """Repeats an action while the database does not answer, until the process has to stop."""

    def __init__(
        self, stopping: Callable[[], bool], pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._stopping = stopping
        self._pause = pause

    def __call__(self, act: Callable[[], T]) -> T:
        """Return the result of ``act``.

        Raises StoppedError while it waits, and the error of ``act`` after ``MAX_WAIT_S``.
        """
        waited_s, failures = 0.0, 0
        while True:
            try:
                return act()
            except (InterfaceError, OperationalError):
                if waited_s >= MAX_WAIT_S:
                    raise
            self.check()
            failures += 1
            pause_s = _BACKOFF.pause_s(failures)
            self._pause(pause_s)
            waited_s += pause_s

    def check(self) -> None:
        """Raise StoppedError if the process has to stop."""
        if self._stopping():
            raise StoppedError
