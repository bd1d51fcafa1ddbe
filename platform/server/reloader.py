"""Reloads the configuration file of a running server, after SIGHUP.

A file with an error changes nothing. Reloadable settings apply together; each other changed one is
logged, at every reload until the server is restarted or the change is reverted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fastapi import FastAPI

from fairserve.platform.server.configuration.reload import READ_BY_JOBS, change_of
from fairserve.platform.server.configuration.sources import SettingsError
from fairserve.platform.server.lifecycle import Platform
from fairserve.platform.server.logs import reload_logging
from fairserve.platform.server.settings import Settings

logger = logging.getLogger(__name__)

Reread = Callable[[], Settings]
"""Reads flags, environment and file again. Raises SettingsError."""


class Reloader:
    """Reloads the settings of one process. Belongs to the event loop."""

    def __init__(self, reread: Reread, platform: Platform, app: FastAPI) -> None:
        self._reread = reread
        self._platform = platform
        self._app = app
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def request(self) -> None:
        """Reload soon, after a reload in progress."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self) -> None:
        """Read the file and apply what can change."""
        async with self._one:
            if not self._platform.started.is_set():
                logger.warning("the configuration is not reloaded: the server is starting")
                return
            try:
                wanted = await asyncio.to_thread(self._reread)
            except SettingsError as error:
                for problem in error.problems:
                    logger.error("the configuration is invalid, nothing changes: %s", problem)
                return
            change = change_of(self._platform.settings, wanted)
            for name in change.restart:
                shown = "fleet" if name == "fleet_file" else name
                logger.warning("%s has changed in the configuration and needs a restart", shown)
            await self._platform.reload(change.settings)
            self._app.state.settings = change.settings
            self._app.state.tenancy = self._platform.tenancy()
            server = change.settings.server
            reload_logging(server.log_level, server.log_format)
            logger.info(
                "the configuration is reloaded; changed: %s", ", ".join(change.applied) or "nothing"
            )
            for_jobs = [name for name in change.applied if name in READ_BY_JOBS]
            if for_jobs and change.settings.background.jobs_on_celery:
                logger.warning(
                    "restart `fairserve jobs worker` and `fairserve jobs beat`, which read their"
                    " settings at the start: %s",
                    ", ".join(for_jobs),
                )
