"""``fairserve jobs``: the processes of background jobs, and their states.

``worker`` and ``beat`` are Celery's, for a server that leaves its jobs to them; ``list`` and ``run``
work directly on the database. Exit codes: 0 done; 1 a job failed, or the database is not accessible; 2
usage error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from sqlalchemy import select
from typer import Argument, Option

from fairserve.platform.background.jobs.job import JobContext
from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.background.jobs.passes import JobFailedError, replay, run_pass
from fairserve.platform.background.jobs.schemas import JobOut
from fairserve.platform.base.command_line import (
    FAILED,
    CommandError,
    CommandGroup,
    print_table,
    with_options,
)
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import read_only, session_factory
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.server.commands.on_database import DATABASE, opened
from fairserve.platform.server.configuration.flags import flag_options

app = CommandGroup(help="Background jobs, run by the server itself or by Celery.")
_REDIS = flag_options("redis_url")


def _job(text: str) -> str:
    if text not in JOBS:
        raise ValueError(f"{text!r} is no job; known: {', '.join(JOBS)}")
    return text


@app.command()
@with_options(*DATABASE, *_REDIS)
def worker(
    concurrency: Annotated[int, Option(metavar="N", help="Processes.")] = 2,
    pool: Annotated[
        Literal["prefork", "solo", "threads"], Option(help="Kind of processes.")
    ] = "prefork",
    **flags: Any,
) -> None:
    """Run jobs that are sent through Redis."""
    from fairserve.platform.background.jobs.celery_jobs import celery_app

    with opened(flags) as (settings, engine):
        engine.dispose()
        work = celery_app(settings).Worker(
            concurrency=concurrency,
            pool_cls=pool,
            loglevel=settings.server.log_level,
            without_gossip=True,
            without_mingle=True,
        )
        work.start()
    if work.exitcode:
        raise CommandError("the worker has failed; the lines above have the reason", FAILED)


@app.command()
@with_options(*DATABASE, *_REDIS)
def beat(**flags: Any) -> None:
    """Send jobs through Redis when they are due."""
    from fairserve.platform.background.jobs.celery_jobs import celery_app

    with opened(flags) as (settings, engine):
        engine.dispose()
        celery_app(settings).Beat(loglevel=settings.server.log_level, quiet=True).run()


@app.command("list")
@with_options(*DATABASE)
def list_jobs(**flags: Any) -> None:
    """List all jobs with their states."""
    with opened(flags) as (settings, engine):
        with session_factory(engine)() as session:
            states = {state.name: state for state in read_only(session).scalars(select(JobState))}
        now = utc_now()
        rows = []
        for job in JOBS.values():
            out = JobOut.of(job, job.interval_s(settings), states.get(job.name), now)
            last = "" if out.succeeded_at is None else f"{out.succeeded_at:%Y-%m-%d %H:%M:%S}"
            rows.append([out.name, out.health, f"{out.interval_s:g} s", last, out.error])
    print_table(rows, ["job", "health", "every", "succeeded (UTC)", "last error"])


@app.command()
@with_options(*DATABASE)
def run(
    name: Annotated[str, Argument(parser=_job, metavar="NAME", help=f"{', '.join(JOBS)}.")],
    **flags: Any,
) -> None:
    """Run one pass of a job in this process, dead or not."""
    with opened(flags) as (settings, engine):
        sessions = session_factory(engine)
        context = JobContext(sessions, settings, key_hasher(settings.db))
        with sessions.begin() as session:
            replay(session, name)
        try:
            done = run_pass(JOBS[name], context, lambda: False)
        except JobFailedError as error:
            raise CommandError(f"{name}: {error.__cause__}", FAILED) from error
    print(f"{name}: {done:,} done")
