"""Deliver webhooks at least once, with a fixed id, from any number of processes.

A plain function for a thread or a task. Its event loop sends several deliveries at a time; each is
claimed, sent and recorded separately, so that a slow receiver does not delay others, and failing
receivers have at most half of the slots. A process may be killed at any point: its deliveries are due
again when their leases expire, and receivers recognise repetitions by ``webhook-id``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks.claims import (
    Claimed,
    Slots,
    any_due,
    claim,
    record,
    release,
)
from fairserve.platform.background.webhooks.guard import Guard, Resolve, system_resolve
from fairserve.platform.background.webhooks.name_lookups import NameLookups
from fairserve.platform.background.webhooks.sender import send
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.base.threads import to_its_end
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.key_hash import KeyHasher

TIMEOUT_S = 10.0
"""Seconds that a receiver may take to respond, including the DNS lookup."""
MAX_ATTEMPTS = 10
"""Attempts after which a delivery is dead: nine within a day, later ones every 12 hours."""
SLOTS = 16
"""Maximum concurrent deliveries of a process."""
FAILING_SLOTS = SLOTS // 2
TENANT_SHARE = 1 / 2
"""Share of slots, and of threads for DNS lookups, that a tenant may have of what others leave."""
NAME_THREADS = 4 * SLOTS
"""Threads for DNS lookups. A lookup cannot be cancelled: a slow one occupies its thread."""
ENDING_S = 2.0
"""Seconds that deliveries in progress have to end at a stop: an aborted one is repeated."""
POLL_INTERVAL_S = 0.2
"""Seconds between checks for due deliveries and for a stop."""


def deliver_due(
    sessions: SessionFactory,
    settings: BackgroundSettings,
    hasher: KeyHasher,
    *,
    stopping: Callable[[], bool] = lambda: False,
    now: Callable[[], datetime] = utc_now,
    resolve: Resolve = system_resolve,
    timeout_s: float = TIMEOUT_S,
) -> int:
    """Send all due deliveries, and return the number of attempts.

    When ``stopping`` returns True, claims no more, releases those that do not end within ``ENDING_S``
    and returns. Raises SQLAlchemyError if the database fails; claimed deliveries are due again when
    their leases expire.
    Must not be called in a thread with a running event loop.
    """
    if not any_due(sessions, now()):
        return 0  # as a rule: without an event loop and its threads
    return asyncio.run(
        _Deliverer(sessions, settings, hasher, stopping, now, resolve, timeout_s).run()
    )


class _Deliverer:
    def __init__(
        self,
        sessions: SessionFactory,
        settings: BackgroundSettings,
        hasher: KeyHasher,
        stopping: Callable[[], bool],
        now: Callable[[], datetime],
        resolve: Resolve,
        timeout_s: float,
    ) -> None:
        self._sessions = sessions
        self._hasher = hasher
        self._stopping = stopping
        self._now = now
        self._timeout_s = timeout_s
        self._guard = guard_of(settings, resolve)
        self._lease = timedelta(seconds=2 * self._timeout_s + 1)
        # Slow DNS lookups must not delay database access.
        self._names = NameLookups(self._guard, NAME_THREADS, TENANT_SHARE)
        self._slots = Slots(
            SharedLimit(SLOTS, TENANT_SHARE), SharedLimit(FAILING_SLOTS, TENANT_SHARE)
        )
        self._running: dict[asyncio.Task[None], Claimed] = {}

    async def run(self) -> int:
        """Send until nothing is due."""
        tried = 0
        try:
            while not self._stopping():
                taken = await self._claim()
                tried += len(taken)
                for claimed in taken:
                    self._running[asyncio.create_task(self._deliver(claimed))] = claimed
                if not self._running:
                    break
                await self._some()
            if self._running:
                await asyncio.wait(self._running, timeout=ENDING_S)
        finally:
            await self._release()
            self._names.close()
        return tried

    async def _claim(self) -> list[Claimed]:
        if self._slots.all.used >= SLOTS:
            return []
        return await asyncio.to_thread(
            claim,
            self._sessions,
            self._hasher,
            self._now(),
            self._lease,
            self._slots,
            list(self._running.values()),
        )

    async def _some(self) -> None:
        """Wait briefly for a delivery to finish. Raises the error of a delivery."""
        done, _ = await asyncio.wait(
            self._running, timeout=POLL_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            claimed = self._running.pop(task)
            self._slots.release(claimed.tenant, claimed.failing)
            task.result()

    async def _deliver(self, claimed: Claimed) -> None:
        outcome = await send(claimed, self._names, self._timeout_s, self._now)
        await to_its_end(record, self._sessions, claimed, outcome, self._now(), MAX_ATTEMPTS)

    async def _release(self) -> None:
        for task in self._running:
            task.cancel()
        ended = await asyncio.gather(*self._running, return_exceptions=True)
        for claimed, end in zip(self._running.values(), ended, strict=True):
            if isinstance(end, asyncio.CancelledError):
                await asyncio.to_thread(release, self._sessions, claimed)


def guard_of(settings: BackgroundSettings, resolve: Resolve = system_resolve) -> Guard:
    """Return the guard for these settings."""
    return Guard(
        allowed=settings.webhook_allowed_networks,
        resolve=resolve,
    )
