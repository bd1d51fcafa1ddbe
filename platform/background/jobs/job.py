"""Definition of a background job: a function that does the due work and may be called at any time.

A job finds its work in the database, does it in short transactions, and returns its amount. It is
idempotent and may be interrupted at any point and run by several processes at once, so that either the
server or Celery's workers can run it.
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
    """The database, settings and secrets of the jobs."""

    sessions: SessionFactory
    settings: JobSettings
    hasher: KeyHasher


@dataclass(frozen=True, slots=True)
class Job:
    """A job with its interval."""

    name: str
    about: str
    interval_s: Callable[[JobSettings], float]
    """Minimum seconds from the end of one pass to the start of the next."""
    run: Callable[[JobContext, Stopping], int]
    """Does the due work until it has to stop; returns its amount."""
    rest: float = 10.0
    """Minimum pause after a pass in the server, as a multiple of the pass's duration, to limit the load
    on a core that also serves calls. 0 for a job that mostly waits."""
