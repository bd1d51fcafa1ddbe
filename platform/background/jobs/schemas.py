"""Answers of ``/admin/jobs``."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel

from fairserve.platform.background.jobs.job import Job
from fairserve.platform.background.jobs.passes import retry_at
from fairserve.platform.db.jobs import JobState

Health = Literal["fine", "failing", "dead", "late", "new"]
"""late: the last run is far longer ago than its interval, its runner may be down; new: it never ran."""


class JobOut(BaseModel):
    """A background job and its state."""

    name: str
    about: str
    health: Health
    interval_s: float
    succeeded_at: datetime | None
    """End of its last successful pass, to the minute."""
    took_s: float | None
    done: int
    """Work of that pass: rows, profiles, deliveries, files; always 0 for the rollup."""
    failures: int
    """Failed passes in a row."""
    failed_at: datetime | None
    retry_at: datetime | None
    error: str
    """Error of the last failed pass."""
    dead_at: datetime | None

    @classmethod
    def of(cls, job: Job, interval_s: float, state: JobState | None, now: datetime) -> Self:
        """Return the job as the API shows it."""
        if state is None:
            state = JobState(name=job.name, done=0, failures=0, error="")
        return cls(
            name=job.name,
            about=job.about,
            health=_health(state, interval_s, now),
            interval_s=interval_s,
            succeeded_at=state.succeeded_at,
            took_s=state.took_s,
            done=state.done,
            failures=state.failures,
            failed_at=state.failed_at,
            retry_at=retry_at(state),
            error=state.error,
            dead_at=state.dead_at,
        )


class Jobs(BaseModel):
    """All background jobs."""

    done_by: Literal["here", "celery"]
    items: list[JobOut]


def _health(state: JobState, interval_s: float, now: datetime) -> Health:
    if state.dead_at is not None:
        return "dead"
    if state.failures:
        return "failing"
    if state.succeeded_at is None:
        return "new"
    late_s = 10 * interval_s + 300
    return "late" if (now - state.succeeded_at).total_seconds() > late_s else "fine"
