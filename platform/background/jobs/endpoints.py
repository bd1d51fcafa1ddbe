"""``/admin/jobs``: background jobs, their failures, and requests to run them."""

from __future__ import annotations

from typing import Protocol

from fastapi import APIRouter, Depends, Request, status
from sqlalchemy import select

from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.background.jobs.passes import replay
from fairserve.platform.background.jobs.schemas import JobOut, Jobs
from fairserve.platform.background.settings import JobSettings
from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.session import ReadSession, WriteSession, after_commit
from fairserve.platform.tenancy.auth import AdminPrincipal, require_admin

router = APIRouter(prefix="/admin/jobs", dependencies=[Depends(require_admin)])


class JobRequests(Protocol):
    """The runner of the jobs."""

    def request(self, name: str) -> None:
        """Run a pass of this job soon."""
        ...


@router.get("")
def list_jobs(request: Request, session: ReadSession) -> Jobs:
    """List all background jobs, with the errors of failing ones."""
    settings: JobSettings = request.app.state.settings
    states = {state.name: state for state in session.scalars(select(JobState))}
    now = utc_now()
    return Jobs(
        done_by="celery" if settings.background.jobs_on_celery else "here",
        items=[
            JobOut.of(job, job.interval_s(settings), states.get(job.name), now)
            for job in JOBS.values()
        ],
    )


@router.post("/{job}/run", status_code=status.HTTP_202_ACCEPTED)
def run_job(job: str, request: Request, session: WriteSession, principal: AdminPrincipal) -> JobOut:
    """Run a job soon, dead or not: its failures are reset, its last error stays readable."""
    found = JOBS.get(job)
    if found is None:
        raise NotFoundError(f"there is no such job; there are: {', '.join(JOBS)}", param="job")
    state = replay(session, job)
    jobs: JobRequests = request.app.state.jobs
    after_commit(session, lambda: jobs.request(job))
    audit.record(session, principal, "job.run", job)
    settings: JobSettings = request.app.state.settings
    return JobOut.of(found, found.interval_s(settings), state, utc_now())
