"""Run background jobs inside the server: each job has its own loop and runs its passes in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.background.jobs.job import Job, JobContext
from fairserve.platform.background.jobs.passes import JobFailedError, run_pass
from fairserve.platform.background.settings import JobSettings

logger = logging.getLogger(__name__)

MAX_REST_S = 60.0


class JobsInProcess:
    """The jobs of one server."""

    def __init__(self, jobs: Mapping[str, Job], context: JobContext) -> None:
        self._jobs, self._context = jobs, context
        self._wanted = {name: asyncio.Event() for name in jobs}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all jobs."""
        self._loop = asyncio.get_running_loop()
        for job in self._jobs.values():
            self._tasks.append(asyncio.create_task(self._keep_running(job), name=f"job {job.name}"))

    def request(self, name: str) -> None:
        """Run a pass of this job soon. Thread-safe; has no effect before :meth:`start`."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wanted[name].set)

    def reload(self, settings: JobSettings) -> None:
        """Use other settings from each job's next pass on."""
        self._context = replace(self._context, settings=settings)

    async def stop(self) -> None:
        """Stop all jobs after their current transactions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_running(self, job: Job) -> None:
        wanted = self._wanted[job.name]
        away = False
        while True:
            wanted.clear()
            began_s = time.monotonic()
            try:
                await self._pass(job)
                away = False
            except JobFailedError:
                pass  # stored and logged; the job's state has the time of the next attempt
            except SQLAlchemyError as error:
                if not away:
                    logger.warning(
                        "cannot run job %s, database error: %s", job.name, type(error).__name__
                    )
                away = True
            rest_s = min(job.rest * (time.monotonic() - began_s), MAX_REST_S)
            interval_s = job.interval_s(self._context.settings)
            try:
                await asyncio.wait_for(wanted.wait(), max(interval_s, rest_s))
            except TimeoutError:
                continue

    async def _pass(self, job: Job) -> None:
        stopping = threading.Event()
        work = asyncio.create_task(asyncio.to_thread(run_pass, job, self._context, stopping.is_set))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            stopping.set()
            await asyncio.gather(work, return_exceptions=True)
            raise
