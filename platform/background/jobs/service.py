"""State of the background jobs, and requests to run a job."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.background.jobs.passes import replay
from fairserve.platform.background.jobs.schemas import JobOut, Jobs
from fairserve.platform.background.settings import JobSettings
from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.auth import Principal


class JobRequests(Protocol):
    """The runner of the jobs."""

    def request(self, name: str) -> None:
        """Run a pass of this job soon."""
        ...


def jobs_out(session: Session, settings: JobSettings) -> Jobs:
    """Return all background jobs, with the last error of failing ones."""
    states = {state.name: state for state in session.scalars(select(JobState))}
    now = utc_now()
    return Jobs(
        done_by="celery" if settings.background.jobs_on_celery else "here",
        items=[
            JobOut.of(job, job.interval_s(settings), states.get(job.name), now)
            for job in JOBS.values()
        ],
    )


def run_soon(
    session: Session, settings: JobSettings, runner: JobRequests, principal: Principal, name: str
) -> JobOut:
    """Run a job soon, dead or not; its failures are reset, its last error is kept.

    Raises NotFoundError.
    """
    found = JOBS.get(name)
    if found is None:
        raise NotFoundError(f"there is no such job; use one of {', '.join(JOBS)}", param="job")
    state = replay(session, name)
    after_commit(session, lambda: runner.request(name))
    audit.record(session, principal, "job.run", name)
    return JobOut.of(found, found.interval_s(settings), state, utc_now())
