"""Responses of ``/admin/jobs``."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel

from fairserve.platform.background.jobs.job import Job
from fairserve.platform.background.jobs.passes import retry_at
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.schemas import view_of

Health = Literal["fine", "failing", "dead", "late", "new"]
"""``late``: the last pass is far older than the interval, the runner may be down; ``new``: no pass."""


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
    """Rows, profiles, deliveries or files processed by that pass; always 0 for the rollup."""
    failures: int
    """Consecutive failed passes."""
    failed_at: datetime | None
    retry_at: datetime | None
    error: str
    """Error of the last failed pass."""
    dead_at: datetime | None

    @classmethod
    def of(cls, job: Job, interval_s: float, state: JobState | None, now: datetime) -> Self:
        """Return the API's view of a job."""
        if state is None:
            state = JobState(name=job.name, done=0, failures=0, error="")
        return view_of(
            cls,
            state,
            about=job.about,
            health=_health(state, interval_s, now),
            interval_s=interval_s,
            retry_at=retry_at(state),
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
