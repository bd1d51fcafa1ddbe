"""``fairserve jobs``: the processes of background jobs, and their states.

``worker`` and ``beat`` are Celery's, for a server that leaves its jobs to them; ``list`` and ``run``
work directly on the database. Exit codes: 0 done; 1 a job failed, or the database is not accessible; 2
usage error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sqlalchemy import Engine, select

from fairserve.platform.background.jobs.job import JobContext
from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.background.jobs.passes import JobFailedError, replay, run_pass
from fairserve.platform.background.jobs.schemas import JobOut
from fairserve.platform.base.argument_parser import OneLineParser
from fairserve.platform.base.text_table import aligned
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import read_only, session_factory
from fairserve.platform.db.jobs import JobState
from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.server.commands.on_database import add_database_flags, fail, on_database
from fairserve.platform.server.settings import Settings

_COMMAND = "fairserve jobs"


def main(argv: Sequence[str]) -> int:
    """Run a subcommand; return the exit code."""
    arguments = _parser().parse_args(argv)
    return on_database(_COMMAND, arguments, arguments.act)


def _list(arguments: argparse.Namespace, settings: Settings, engine: Engine) -> int:
    with session_factory(engine)() as session:
        states = {state.name: state for state in read_only(session).scalars(select(JobState))}
    now = utc_now()
    rows = []
    for job in JOBS.values():
        out = JobOut.of(job, job.interval_s(settings), states.get(job.name), now)
        last = "" if out.succeeded_at is None else f"{out.succeeded_at:%Y-%m-%d %H:%M:%S}"
        rows.append([out.name, out.health, f"{out.interval_s:g} s", last, out.error])
    header = ["job", "health", "every", "succeeded (UTC)", "last error"]
    print(aligned(header, rows, left=(0, 1, 3, 4)))
    return 0


def _run(arguments: argparse.Namespace, settings: Settings, engine: Engine) -> int:
    sessions = session_factory(engine)
    context = JobContext(sessions, settings, key_hasher(settings.db))
    with sessions.begin() as session:
        replay(session, arguments.name)
    try:
        done = run_pass(JOBS[arguments.name], context, lambda: False)
    except JobFailedError as error:
        return fail(_COMMAND, f"{arguments.name}: {error.__cause__}")
    print(f"{arguments.name}: {done:,} done")
    return 0


def _worker(arguments: argparse.Namespace, settings: Settings, engine: Engine) -> int:
    from fairserve.platform.background.jobs.celery_jobs import celery_app

    engine.dispose()
    flags = [f"--concurrency={arguments.concurrency}", f"--pool={arguments.pool}"]
    quiet = ["--without-gossip", "--without-mingle", f"--loglevel={settings.server.log_level}"]
    celery_app(settings).worker_main(["worker", *flags, *quiet])
    return 0


def _beat(arguments: argparse.Namespace, settings: Settings, engine: Engine) -> int:
    from fairserve.platform.background.jobs.celery_jobs import celery_app

    engine.dispose()
    celery_app(settings).Beat(loglevel=settings.server.log_level, quiet=True).run()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=_COMMAND,
        description="Background jobs, run by the server itself or by Celery.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text, act in (
        ("worker", "run jobs that are sent through Redis", _worker),
        ("beat", "send jobs through Redis when they are due", _beat),
        ("list", "list all jobs with their states", _list),
        ("run", "run one pass of a job in this process, dead or not", _run),
    ):
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.set_defaults(act=act)
        add_database_flags(action)
        if name in ("worker", "beat"):
            action.add_argument(
                "--redis-url", help="Redis. Environment: FAIRSERVE_REDIS_URL, REDIS_URL."
            )
        if name == "worker":
            action.add_argument(
                "--concurrency", type=int, default=2, metavar="N", help="processes; default: 2"
            )
            action.add_argument("--pool", choices=("prefork", "solo", "threads"), default="prefork")
        if name == "run":
            action.add_argument("name", choices=tuple(JOBS), metavar="NAME", help=", ".join(JOBS))
    return parser
