"""What ``/admin/jobs`` says."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel

from fairserve.platform.background.jobs.job import Job
from fairserve.platform.background.jobs.passes import retry_at
from fairserve.platform.db.jobs import JobState

Health = Literal["fine", "failing", "dead", "late", "new"]
"""late: it has not run for far longer than its interval: nobody seems to run it; new: it never ran."""


class JobOut(BaseModel):
    """A background job, and how it fares."""

    name: str
    about: str
    health: Health
    interval_s: float
    succeeded_at: datetime | None
    """When a pass of it ended well, to the minute."""
    took_s: float | None
    done: int
    """What that pass did: rows, profiles, deliveries, files; the rollup does not count."""
    failures: int
    """Passes in a row that failed."""
    failed_at: datetime | None
    retry_at: datetime | None
    error: str
    """Of the last pass that failed."""
    dead_at: datetime | None

    @classmethod
    def of(cls, job: Job, interval_s: float, state: JobState | None, now: datetime) -> Self:
        """As the API shows it."""
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
