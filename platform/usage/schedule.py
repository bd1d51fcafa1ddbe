"""The server's background task that keeps the rollups fresh."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.usage.rollups import roll_up

logger = logging.getLogger(__name__)

REST = 10
"""A pass is followed by a rest of so many times its length, so that it takes a tenth of a core."""
MAX_REST_S = 60.0


async def keep_rolled_up(sessions: SessionFactory, interval_s: float) -> None:
    """Roll up what was marked, again and again, in a thread; a step under way ends when cancelled."""
    stopping = threading.Event()
    failing = False
    while True:
        began_s = time.monotonic()
        work = asyncio.create_task(
            asyncio.to_thread(partial(roll_up, sessions, stopping=stopping.is_set))
        )
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            stopping.set()
            await asyncio.gather(work, return_exceptions=True)
            raise
        except SQLAlchemyError as error:
            if not failing:
                logger.warning("the rollups wait for the database: %s", type(error).__name__)
            failing = True
        else:
            failing = False
        rest_s = min(REST * (time.monotonic() - began_s), MAX_REST_S)
        await asyncio.sleep(max(interval_s, rest_s))
