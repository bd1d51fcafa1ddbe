"""A background job: a function that does the work that is due, and may be called at any time.

Every job finds its work in the database, does it in short transactions, and returns its amount. It may
be interrupted at any point, run by several processes at once, and repeated without a second effect. So
either the server itself or Celery's workers may run it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairserve.platform.background.settings import JobSettings
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.key_hash import KeyHasher

Stopping = Callable[[], bool]
"""Returns True when a job has to stop after its current transaction."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The database, settings and secrets that jobs use."""

    sessions: SessionFactory
    settings: JobSettings
    hasher: KeyHasher


@dataclass(frozen=True, slots=True)
class Job:
    """A job with its interval."""

    name: str
    about: str
    interval_s: Callable[[JobSettings], float]
    """Least seconds from the end of one pass to the begin of the next."""
    run: Callable[[JobContext, Stopping], int]
    """Does the work that is due, until it has to stop; returns its amount."""
    rest: float = 10.0
    """Least pause after a pass inside the server, as a multiple of the pass's duration, so that the job
    takes little of a core that also serves calls. 0 for a job that mostly waits."""
