"""Threads of their own for large prompts, shared by all models and dealt out to tenants in turn.

Small prompts never wait behind a large one, and a tenant's large prompt waits for at most one of every
other tenant, however many those have sent. How many wait is bounded by the memory for bodies
(:mod:`fairserve.platform.serving.bodies`). O(1) for each prompt.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
THREADS = 1
"""One, so that other work always finds a core."""


class LargePrompts:
    """Runs work in a few threads, fairly by tenant. Belongs to one event loop."""

    def __init__(self, threads: int = THREADS) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="large prompts")
        self._free = threads
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, once it is the tenant's turn.

        Cancelled, it leaves the queue; work that has begun runs to its end and keeps its thread.
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
                self._next()  # it was its turn at this very moment
            raise

    def _ended(self, running: asyncio.Future[T]) -> None:
        if not running.cancelled():
            running.exception()  # seen, also where nobody waits any more
        self._next()

    def _next(self) -> None:
        """Give the free thread to the tenant that has waited longest for a turn."""
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
        """End the threads; what waits is abandoned."""
        self._executor.shutdown(wait=False, cancel_futures=True)
