"""Failed uses of API keys in the audit log: bounded, so that a flood of guesses does not fill it.

Within five minutes an address gets one entry, and all addresses ``MAX_ENTRIES``; the next entry counts
the attempts that got none. An IPv6 client counts by its /64 network. An entry names the key where it is
known: revoked, expired, or of a suspended app or tenant. A request without a key is no failed use.

Cost of a failed use: O(1) in memory; an entry is two statements, off the event loop. Weakness: an
application whose address has an entry already adds only to the count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from fairserve.platform.base.client_address import address_block
from fairserve.platform.base.request_facts import current_client
from fairserve.platform.db import audit
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.throttling.overload.window import SlidingLog

logger = logging.getLogger(__name__)

WINDOW_S = 300.0
MAX_ENTRIES = 20
"""Entries of the audit log about failed uses within ``WINDOW_S``."""
_ALL = ""


class FailureEntries:
    """Chooses the failures that get an entry in the audit log, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries = SlidingLog(WINDOW_S)
        """Entries by address, and in total."""
        self._attempts = 0
        """Attempts since the last entry."""

    def count(self, address: str) -> int | None:
        """Count a failure; return the number to log, or None if it gets no entry."""
        now_s = self._clock()
        self._attempts += 1
        block = address_block(address) or "unknown"
        if self._entries.count(block, now_s):
            return None
        if self._entries.count(_ALL, now_s) >= MAX_ENTRIES:
            return None
        self._entries.forget_idle(now_s)
        self._entries.record(block, 1, now_s)
        self._entries.record(_ALL, MAX_ENTRIES, now_s)
        attempts, self._attempts = self._attempts, 0
        return attempts


class FailedKeys:
    """Records failed uses of keys by requests of the API. Belongs to the event loop."""

    def __init__(
        self,
        sessions: SessionFactory,
        hasher: KeyHasher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions = sessions
        self._hasher = hasher
        self._entries = FailureEntries(clock)

    async def record(self, key: str) -> None:
        """Record that the request in progress named a key that does not work."""
        address = current_client()
        attempts = self._entries.count(address)
        if attempts is None:
            return
        try:
            await asyncio.to_thread(self._store, address, key, attempts)
        except SQLAlchemyError as error:
            logger.warning(
                "a failed use of a key is not in the audit log: %s", type(error).__name__
            )

    def _store(self, address: str, key: str, attempts: int) -> None:
        with self._sessions.begin() as session:
            found = session.scalar(
                select(ApiKey).where(ApiKey.key_hash.in_(self._hasher.candidates(key)))
            )
            audit.record(
                session,
                None,
                "key.failed",
                "unknown" if found is None else found.id,
                tenant_id=None if found is None else found.tenant_id,
                actor="unknown" if found is None else found.prefix,
                after={"address": address or "unknown", "attempts": attempts},
            )
