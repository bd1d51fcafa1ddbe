"""``/admin/jobs``: background jobs with their failures, and requests to run one."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, status

from fairserve.platform.background.jobs.schemas import JobOut, Jobs
from fairserve.platform.background.jobs.service import jobs_out, run_soon
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.principals import AdminPrincipal, require_admin

router = APIRouter(prefix="/admin/jobs", dependencies=[Depends(require_admin)])


@router.get("")
def list_jobs(request: Request, session: ReadSession) -> Jobs:
    """Return all background jobs, with the last error of failing ones."""
    return jobs_out(session, request.app.state.settings)


@router.post("/{job}/run", status_code=status.HTTP_202_ACCEPTED)
def run_job(job: str, request: Request, session: WriteSession, principal: AdminPrincipal) -> JobOut:
    """Run a job soon, dead or not: its failures are reset, its last error is kept."""
    state = request.app.state
    return run_soon(session, state.settings, state.jobs, principal, job)
