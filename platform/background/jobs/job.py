"""A background job: a function that does what is due, and may be called again at any time.

Every job finds its work in the database, does it in short transactions, and returns how much it did. It
may be cut off at any point, run by several processes at once, and repeated: what is done twice is done
once. So it does not matter who runs it: the server itself, or Celery's workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairserve.platform.background.settings import JobSettings
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.key_hash import KeyHasher

Stopping = Callable[[], bool]
"""Whether to stop after the transaction under way."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What jobs work with."""

    sessions: SessionFactory
    settings: JobSettings
    hasher: KeyHasher


@dataclass(frozen=True, slots=True)
class Job:
    """What is done, and how often."""

    name: str
    about: str
    interval_s: Callable[[JobSettings], float]
    """From the end of one pass to the beginning of the next, at least."""
    run: Callable[[JobContext, Stopping], int]
    """Does what is due until it is told to stop; returns how much it did."""
    rest: float = 10.0
    """Inside the server, a pass is followed by a rest of so many times its length at least, so that it
    takes little of a core that also serves calls. 0 for one that mostly waits."""
