"""Run background jobs on Celery: one task per job, beat as scheduler, Redis as broker.

A task is one pass of a job (:mod:`fairserve.platform.background.jobs.passes`). Messages carry only the
job's name, because its work is in the database: beat replaces a lost message at the job's next interval,
and duplicates are harmless. Workers may therefore be killed at any point, Redis may lose its data, and
several beats may run. No results are kept: a worker that cannot store one, as right after a failover,
would end. A message expires after two intervals, and beat sends none while many are queued, so that a
queue without workers does not grow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from celery import Celery, platforms
from celery.beat import ScheduleEntry, Scheduler, Service
from celery.schedules import schedule
from celery.signals import beat_init, worker_process_init, worker_process_shutdown
from kombu.exceptions import OperationalError as RedisAwayError
from sqlalchemy.exc import InterfaceError, OperationalError

from fairserve.platform.background.jobs import broker
from fairserve.platform.background.jobs.job import Job, JobContext
from fairserve.platform.background.jobs.jobs import JOBS
from fairserve.platform.background.jobs.passes import JobFailedError, run_pass
from fairserve.platform.background.settings import JobSettings
from fairserve.platform.base.redis_client import RedisServer
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.key_hash import key_hasher

logger = logging.getLogger(__name__)

QUEUE = "fairserve"
TASK = "fairserve.jobs."
"""Prefix of the task names, followed by the job's name."""
MOST_WAITING = 100
"""Number of queued messages at which beat stops sending."""
SLICE_S = 30.0
"""Seconds after which a pass stops; the next message continues it."""
UNSEEN_S = 300
"""Seconds after which an unacknowledged message is redelivered."""


def celery_app(settings: JobSettings, jobs: Mapping[str, Job] = JOBS) -> Celery:
    """Return the Celery app of a deployment. Raises ValueError without a valid ``redis_url``."""
    url = settings.background.redis_url
    if not url:
        raise ValueError("Celery needs a Redis: set FAIRSERVE_REDIS_URL")
    broker.register()
    app = Celery("fairserve")
    app.conf.update(
        **_of_redis(RedisServer.of(url), url),
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        task_serializer="json",
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        beat_scheduler=BoundedScheduler,
        beat_max_loop_interval=1,
        beat_schedule={
            job.name: {
                "task": TASK + job.name,
                "schedule": schedule(job.interval_s(settings)),
                "options": {"expires": max(2 * job.interval_s(settings), 10.0)},
            }
            for job in jobs.values()
        },
    )
    process = _Process(settings)
    beat_init.connect(stop_between_ticks, weak=False)
    worker_process_init.connect(process.open, weak=False)
    worker_process_shutdown.connect(process.close, weak=False)
    for job in jobs.values():
        app.task(_task(job, process), name=TASK + job.name)
    return app


def _of_redis(server: RedisServer, url: str) -> dict[str, Any]:
    """Return Celery's settings of a Redis, which has other names for TLS and sentinels."""
    found: dict[str, Any] = {}
    transport: dict[str, Any] = {"visibility_timeout": UNSEEN_S}
    if server.sentinels:
        user = ":".join(
            quote(server.options.get(name, ""), "") for name in ("username", "password")
        )
        database = server.options.get("db", 0)
        url = ";".join(
            f"sentinel://{user}@{f'[{host}]' if ':' in host else host}:{port}/{database}"
            for host, port in server.sentinels
        )
        transport |= {"master_name": server.service, "sentinel_kwargs": server.sentinel_options}
    if server.tls:
        found["broker_use_ssl"] = {"ssl_cert_reqs": "required"} | server.tls_options
    return found | {
        "broker_url": url,
        "broker_transport_options": transport,
    }


class _Process:
    """State shared by the tasks of one worker process, created at its first use after the fork."""

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._context: JobContext | None = None

    def open(self, **_: Any) -> None:
        """Drop inherited state: a worker process must not use connections of its parent."""
        self._context = None

    def close(self, **_: Any) -> None:
        """Close the connections at the end of the process."""
        if self._context is not None:
            self._context.sessions.kw["bind"].dispose()
            self._context = None

    @property
    def context(self) -> JobContext:
        """Return the context of this process, created by the first call."""
        if self._context is None:
            engine = connect(self._settings.db.effective_database_url, pool_size=2)
            self._context = JobContext(
                session_factory(engine), self._settings, key_hasher(self._settings.db)
            )
        return self._context


def _task(job: Job, process: _Process) -> Any:
    def run() -> int:
        until_s = time.monotonic() + SLICE_S
        try:
            return run_pass(job, process.context, lambda: time.monotonic() >= until_s)
        except JobFailedError:
            return 0  # stored and logged; the job's state has the time of the next attempt
        except (OperationalError, InterfaceError) as error:
            logger.warning("cannot run job %s, database error: %s", job.name, type(error).__name__)
            return 0

    run.__doc__ = f"Run one pass of the job, which {job.about}."
    return run


def stop_between_ticks(sender: Service, **_: Any) -> None:
    """Have a signal end beat after its tick, within a second.

    Celery's own handler raises SystemExit wherever beat is at that moment. In a callback of the garbage
    collector it would be dropped, and beat would run on.
    """

    def stop(*_: Any) -> None:
        sender.stop()

    platforms.signals.update(SIGTERM=stop, SIGINT=stop)


class BoundedScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """In-memory beat scheduler that stops sending while the queue is long.

    It stores no state, so all jobs are due at its start: otherwise jobs with long intervals would never
    run with a beat that restarts often.
    """

    def setup_schedule(self) -> None:
        """Create the schedule's entries."""
        super().setup_schedule()
        for entry in self.schedule.values():
            entry.last_run_at = datetime.fromtimestamp(0, UTC)

    def apply_async(self, entry: ScheduleEntry, *args: Any, **kwargs: Any) -> Any:
        """Send a message unless too many are queued."""
        with self.app.connection_for_read() as connection:
            waiting = connection.default_channel.client.llen(QUEUE)
        if waiting >= MOST_WAITING:
            logger.warning("%d messages are queued; check that a worker is running", waiting)
            return None
        return super().apply_async(entry, *args, **kwargs)


class JobsOnCelery:
    """Job runner of a server that leaves the jobs to Celery's workers."""

    def __init__(self, settings: JobSettings) -> None:
        self._app = celery_app(settings)
        # Otherwise a request waits 6 s for a connection, even with ``retry=False``.
        self._app.conf.broker_transport_options["max_retries"] = 0

    def start(self) -> None:
        """Do nothing: beat and the workers are separate processes."""

    def request(self, name: str) -> None:
        """Send a message that makes a worker run a pass of this job.

        If Redis does not respond, the job runs at its next interval.
        """
        try:
            self._app.send_task(TASK + name, expires=UNSEEN_S, retry=False)
        except RedisAwayError as error:
            logger.warning("cannot request job %s, Redis error: %s", name, type(error).__name__)

    def reload(self, settings: JobSettings) -> None:
        """Do nothing: Celery's processes read their settings when they start."""

    async def stop(self) -> None:
        """Close the connections; running jobs are not affected."""
        self._app.close()
