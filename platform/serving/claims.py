"""The work that servers share through the database: each claims rows, and renews their leases.

Batches, programs and responses in the background are rows that one server at a time works on
(:mod:`fairserve.platform.db.leases`). A server that dies loses its rows after a lease at the latest; the
next one that is alone on the database voids them at its start.

Cost: two queries a second for each kind of row; a third of the lease after its last write a row is
written again, of which SQLite reads all columns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NoReturn

from sqlalchemy.exc import SQLAlchemyError

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=10)
POLL_S = 1.0
"""Interval at which leases are renewed, and waiting rows and cancellations are looked up."""


async def claim_nothing() -> bool:
    """Claim nothing: for rows that end with their process."""
    return False


async def keep_claims(
    what: str,
    renew: Callable[[], Awaitable[None]],
    claim: Callable[[], Awaitable[bool]] = claim_nothing,
    woken: asyncio.Event | None = None,
) -> NoReturn:
    """Renew and claim for ever, every ``POLL_S`` and when woken.

    ``claim`` returns whether it is to be called again at once. After the database was away, the
    holders of rows renew before others may claim these.
    """
    away, woken = False, woken or asyncio.Event()
    while True:
        woken.clear()
        try:
            await renew()
            while not away and await claim():
                await renew()
            away = False
        except Exception as error:  # whatever it is, the leases must be renewed
            if not away:
                known = isinstance(error, SQLAlchemyError)
                text = "%s wait for the database: %s"
                logger.warning(text, what, type(error).__name__, exc_info=not known)
            away = True
        try:
            async with asyncio.timeout(POLL_S):
                await woken.wait()
        except TimeoutError:
            continue
