"""The server's background task that sends webhooks."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.settings import Settings
from fairserve.platform.webhooks.delivery import deliver_due

logger = logging.getLogger(__name__)


async def keep_delivering(sessions: SessionFactory, settings: Settings, hasher: KeyHasher) -> None:
    """Send what is due, again and again, in a thread; gives back what is under way when cancelled."""
    stopping = threading.Event()
    deliver = partial(deliver_due, sessions, settings, hasher, stopping=stopping.is_set)
    failing = False
    while True:
        work = asyncio.create_task(asyncio.to_thread(deliver))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            stopping.set()
            await asyncio.gather(work, return_exceptions=True)
            raise
        except SQLAlchemyError as error:
            if not failing:
                logger.warning("the webhooks wait for the database: %s", type(error).__name__)
            failing = True
        except Exception:
            logger.exception("webhooks could not be sent")
        else:
            failing = False
        await asyncio.sleep(settings.webhook_interval_s)
