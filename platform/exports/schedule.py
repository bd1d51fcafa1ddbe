"""The server's background task that makes exports and lets them expire."""

from __future__ import annotations

import asyncio
import logging
import threading

from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.exports.work import expire_exports, make_exports
from fairserve.platform.settings import Settings

logger = logging.getLogger(__name__)


async def keep_exports_made(sessions: SessionFactory, settings: Settings) -> None:
    """Make what waits, again and again, in a thread; what is under way is given back when cancelled."""
    stopping = threading.Event()

    def work() -> None:
        make_exports(sessions, settings, stopping=stopping.is_set)
        expire_exports(sessions)

    failing = False
    while True:
        running = asyncio.create_task(asyncio.to_thread(work))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            stopping.set()
            await asyncio.gather(running, return_exceptions=True)
            raise
        except SQLAlchemyError as error:
            if not failing:
                logger.warning("the exports wait for the database: %s", type(error).__name__)
            failing = True
        else:
            failing = False
        await asyncio.sleep(settings.export_poll_interval_s)
