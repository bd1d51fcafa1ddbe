"""Dedicated threads for large prompts, shared by all models and scheduled round-robin by tenant.

Small prompts never wait for a large one, and a tenant's large prompt waits for at most one of each
other tenant. The memory for bodies bounds the queue (:mod:`fairserve.platform.serving.bodies`). O(1)
per prompt.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
THREADS = 1
"""Number of threads: one, so that other work has a core."""


class LargePrompts:
    """Runs work in a few threads, round-robin by tenant. Belongs to one event loop."""

    def __init__(self, threads: int = THREADS) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="large prompts")
        self._free = threads
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, once it is the tenant's turn.

        Cancellation removes it from the queue; work that has started keeps its thread until its end.
        """
        await self._turn(tenant)
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    async def _turn(self, tenant: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # it had just been scheduled
            raise

    def _ended(self, running: asyncio.Future[T]) -> None:
        if not running.cancelled():
            running.exception()  # retrieved, in case the waiter was cancelled
        self._next()

    def _next(self) -> None:
        """Assign the free thread to the tenant that has waited longest."""
        while self._waiting:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """End the threads and drop queued work."""
        self._executor.shutdown(wait=False, cancel_futures=True)
