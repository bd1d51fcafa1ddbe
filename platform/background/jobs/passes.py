"""Run one pass of a job, and store its result or error for all processes.

A failed pass is retried with increasing delays. A job with ``MOST_FAILURES`` consecutive failures is
dead: it is shown with its error until an operator replays it or one of its hourly attempts succeeds.
Failures while the database is down are not counted, because they cannot be stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from fairserve.engine.backoff import Backoff
from fairserve.platform.background.jobs.job import Job, JobContext, Stopping
from fairserve.platform.db.base import TEXT_CHARS, utc_now
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.upsert import fitting_text

logger = logging.getLogger(__name__)

MOST_FAILURES = 8
BACKOFF = Backoff(5.0, 3600.0)
KEEP_EVERY_S = 60.0
"""Minimum seconds between records of passes without work, so that idle jobs rarely write."""


class JobFailedError(Exception):
    """A pass failed; the job's state has the time of the next attempt."""


def run_pass(
    job: Job, context: JobContext, stopping: Stopping, *, now: Callable[[], datetime] = utc_now
) -> int:
    """Run one pass if the job is due; return the amount of work.

    Raises OperationalError while the database is down, and JobFailedError for other errors, after they
    are stored and logged.
    """
    before = state_of(context.sessions, job.name)
    if before is not None and not _may_run(before, now()):
        return 0
    began_s = time.perf_counter()
    try:
        done = job.run(context, stopping)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        _keep_failure(context.sessions, job.name, error, now())
        logger.exception("the job %s failed", job.name)
        raise JobFailedError(job.name) from error
    took_s = time.perf_counter() - began_s
    if done or before is None or _stale(before, now()):
        _keep_success(context.sessions, job.name, done, took_s, now())
    return done


def state_of(sessions: SessionFactory, name: str) -> JobState | None:
    """Return the state of a job; None if it never ran."""
    with sessions() as session:
        return read_only(session).get(JobState, name)


def replay(session: Session, name: str) -> JobState | None:
    """Allow a failing or dead job to run at once. Its last error is kept.

    The caller commits. Returns the state; None if the job never ran.
    """
    state = session.get(JobState, name, with_for_update=True)
    if state is not None:
        state.failures, state.dead_at, state.failed_at = 0, None, None
    return state


def retry_at(state: JobState) -> datetime | None:
    """Return the time of a failed job's next attempt; None if it did not fail."""
    if not state.failures or state.failed_at is None:
        return None
    return state.failed_at + timedelta(seconds=BACKOFF.pause_s(state.failures))


def _may_run(state: JobState, now: datetime) -> bool:
    due = retry_at(state)
    return due is None or due <= now or _later(state.failed_at, now)


def _stale(state: JobState, now: datetime) -> bool:
    if state.failures or state.succeeded_at is None:
        return True
    age_s = (now - state.succeeded_at).total_seconds()
    return age_s >= KEEP_EVERY_S or _later(state.succeeded_at, now)


def _later(time: datetime | None, now: datetime) -> bool:
    """Return whether a past time is in the future, because the clock has gone back since."""
    return time is not None and time > now


def _keep_success(
    sessions: SessionFactory, name: str, done: int, took_s: float, now: datetime
) -> None:
    with sessions.begin() as session:
        state = session.get(JobState, name, with_for_update=True)
        if state is None:
            state = JobState(name=name, failures=0, error="")
        state.succeeded_at, state.took_s, state.done = now, took_s, done
        state.failures, state.dead_at = 0, None
        session.add(state)


def _keep_failure(sessions: SessionFactory, name: str, error: Exception, now: datetime) -> None:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    with sessions.begin() as session:
        state = session.get(JobState, name, with_for_update=True)
        if state is None:
            state = JobState(name=name, done=0, failures=0)
        state.failures += 1
        state.failed_at, state.error = now, fitting_text(text, TEXT_CHARS)
        if state.failures >= MOST_FAILURES:
            state.dead_at = now
        session.add(state)
