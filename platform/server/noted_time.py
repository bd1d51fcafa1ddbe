"""The time of the cell that database and Redis both have, by which a restored one is noticed.

The speaker notes the time every 20 s, in the database first and then in Redis. So that of the database
is never before that of Redis, and after it by the interval and what Redis lost in a crash. Otherwise one
of them was restored from a backup, belongs to another installation, or was used without the other. No
server starts then: limits, budgets and rows of the cell would be those of another past.

Weakness: a restored copy that is less than 20 s old may not be noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.base.redis_client import LOST
from fairserve.platform.control.log.redis_log import RedisLog
from fairserve.platform.db.cell_time import cell_time_ms, note_cell_time
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.server.while_speaking import WhileSpeaking

logger = logging.getLogger(__name__)

NOTED_S = 20.0
"""Seconds between two notes."""
APART_MS = 60_000
"""Time by which Redis may be behind: the interval, and what a crash of it may lose."""


def cell_keys(secret_id: str) -> str:
    """Return how the keys of a cell in Redis begin; the hash tag is the id of the secret key."""
    return f"fairserve:{{{secret_id}}}"


async def disagreement_at(redis_url: str, sessions: SessionFactory, keys: str) -> str:
    """Return in what the database and the Redis of a URL disagree; empty if they agree.

    Raises SQLAlchemyError, and the errors of :data:`LOST`.
    """
    log = RedisLog(redis_url, keys)
    try:
        return await _read(sessions, log, keys)
    finally:
        await log.close()


async def _read(sessions: SessionFactory, log: RedisLog, keys: str) -> str:
    in_redis_ms = await log.noted()  # first: a note is in the database before
    return disagreement(await asyncio.to_thread(_in_database_ms, sessions), in_redis_ms, keys)


def disagreement(in_database_ms: int | None, in_redis_ms: int | None, keys: str) -> str:
    """Return in what two times disagree, and what to do; empty if they agree.

    ``keys`` is how the keys of the cell in Redis begin.
    """
    if in_redis_ms is None:
        return ""
    if in_database_ms is None or in_database_ms < in_redis_ms:
        cause = "the database was restored, is another one, or was used by a server of role all"
    elif in_database_ms > in_redis_ms + APART_MS:
        cause = "Redis was restored"
    else:
        return ""
    return (
        f"the latest time of the cell is {_shown(in_redis_ms)} in Redis, and {_shown(in_database_ms)} in"
        f" the database: {cause}. Stop all servers, delete the keys {keys}:* in Redis, and start"
        " control: the cell begins from the database (docs/guide/scaling.md#a-restored-database)"
    )


def _shown(at_ms: int | None) -> str:
    if at_ms is None:
        return "none"
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _in_database_ms(sessions: SessionFactory) -> int | None:
    with sessions() as session:
        return cell_time_ms(session)


def _note(sessions: SessionFactory, at_ms: int) -> None:
    with sessions.begin() as session:
        note_cell_time(session, at_ms)


class NotedTime:
    """Notes the time of the cell while this process speaks. Belongs to one event loop."""

    def __init__(
        self,
        sessions: SessionFactory,
        log: RedisLog,
        keys: str,
        *,
        now_ms: Callable[[], int],
        speaks: Callable[[], bool],
    ) -> None:
        """``now_ms`` returns the time of the cell, ``keys`` is how its keys in Redis begin."""
        self._sessions, self._log, self._keys = sessions, log, keys
        self._now_ms = now_ms
        self._speaking = WhileSpeaking(NOTED_S, speaks)

    def begin(self) -> None:
        """Note the time soon: this process speaks from now on."""
        self._speaking.begin()

    async def run(self) -> None:
        """Note the time until the task is cancelled; log what was restored under running servers."""
        async for _ in self._speaking.times():
            try:
                if problem := await _read(self._sessions, self._log, self._keys):
                    logger.error("%s", problem)
                now_ms = self._now_ms()
                await asyncio.to_thread(_note, self._sessions, now_ms)
                await self._log.note(now_ms)
            except (SQLAlchemyError, *LOST) as error:
                logger.warning("the time of the cell is not noted: %s", type(error).__name__)
