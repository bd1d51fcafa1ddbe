"""Retries while the database is down: an outage does not fail an attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from fairserve.engine.backoff import Backoff

MAX_WAIT_S = 300.0
"""Maximum seconds of retries, after which the error is raised and the attempt is lost."""
_BACKOFF = Backoff(0.1, 5.0)

T = TypeVar("T")


class StoppedError(Exception):
    """The process is stopping."""


class RetryWhileDbDown:
    """Retries an action while the database does not answer, until the process stops."""

    def __init__(
        self, stopping: Callable[[], bool], pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._stopping = stopping
        self._pause = pause

    def __call__(self, act: Callable[[], T]) -> T:
        """Return the result of ``act``.

        Raises StoppedError if the process stops, and the error of ``act`` after ``MAX_WAIT_S``.
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
        """Raise StoppedError if the process is stopping."""
        if self._stopping():
            raise StoppedError
