"""Sends what is due: at least once, under the same id, by any number of processes.

A plain function for a thread or a task. Inside it an event loop sends some deliveries at a time; each
is taken, sent and recorded by itself, so that a slow receiver holds up no other, and receivers that
fail have half of the places at most. A process may be killed at any point: what it had taken is due
again when its lease is over, and receivers tell what they have by ``webhook-id``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks.claims import Claimed, claim, record, release
from fairserve.platform.background.webhooks.guard import Guard, Resolve, system_resolve
from fairserve.platform.background.webhooks.sender import send
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.key_hash import KeyHasher

SLOTS = 16
"""Deliveries that a process sends at a time."""
FAILING_SLOTS = SLOTS // 2
NAME_THREADS = 4 * SLOTS
"""A look-up cannot be stopped: one that takes longer than its delivery may keeps its thread."""
LOOK_S = 0.2
"""How often a process that sends looks for more, and whether it is to stop."""


def deliver_due(
    sessions: SessionFactory,
    settings: BackgroundSettings,
    hasher: KeyHasher,
    *,
    stopping: Callable[[], bool] = lambda: False,
    now: Callable[[], datetime] = utc_now,
    resolve: Resolve = system_resolve,
) -> int:
    """Send everything that is due, and return how many attempts that were.

    Returns early, with what is under way given back, when ``stopping`` says so. Raises SQLAlchemyError
    where the database fails; what was taken is due again when its lease is over. Not for a thread with
    a running event loop.
    """
    return asyncio.run(_Deliverer(sessions, settings, hasher, stopping, now, resolve).run())


class _Deliverer:
    def __init__(
        self,
        sessions: SessionFactory,
        settings: BackgroundSettings,
        hasher: KeyHasher,
        stopping: Callable[[], bool],
        now: Callable[[], datetime],
        resolve: Resolve,
    ) -> None:
        self._sessions = sessions
        self._hasher = hasher
        self._stopping = stopping
        self._now = now
        self._timeout_s = settings.webhook_timeout_s
        self._max_attempts = settings.webhook_max_attempts
        self._guard = guard_of(settings, resolve)
        self._lease = timedelta(seconds=2 * self._timeout_s + 1)
        # Names that take long to look up must not hold up the database.
        self._names = ThreadPoolExecutor(NAME_THREADS, thread_name_prefix="webhook names")
        self._running: dict[asyncio.Task[None], Claimed] = {}

    async def run(self) -> int:
        """Until nothing is due any more."""
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
        finally:
            await self._release()
            self._names.shutdown(wait=False, cancel_futures=True)
        return tried

    async def _claim(self) -> list[Claimed]:
        free = SLOTS - len(self._running)
        if not free:
            return []
        failing = sum(claimed.failing for claimed in self._running.values())
        busy = Counter(claimed.endpoint_id for claimed in self._running.values())
        return await asyncio.to_thread(
            partial(
                claim,
                self._sessions,
                self._hasher,
                self._now(),
                self._lease,
                free,
                FAILING_SLOTS - failing,
                busy,
            )
        )

    async def _some(self) -> None:
        """Wait for the first that is through, or a moment. Raises what one of them raised."""
        done, _ = await asyncio.wait(
            self._running, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            del self._running[task]
            task.result()

    async def _deliver(self, claimed: Claimed) -> None:
        outcome = await send(claimed, self._guard, self._names, self._timeout_s, self._now)
        await asyncio.to_thread(
            record, self._sessions, claimed, outcome, self._now(), self._max_attempts
        )

    async def _release(self) -> None:
        for task in self._running:
            task.cancel()
        ended = await asyncio.gather(*self._running, return_exceptions=True)
        for claimed, end in zip(self._running.values(), ended, strict=True):
            if isinstance(end, asyncio.CancelledError):
                await asyncio.to_thread(release, self._sessions, claimed)


def guard_of(settings: BackgroundSettings, resolve: Resolve = system_resolve) -> Guard:
    """The guard that these settings ask for."""
    return Guard(
        allow_http=settings.webhook_allow_http,
        allowed=settings.webhook_allowed_networks,
        resolve=resolve,
    )
