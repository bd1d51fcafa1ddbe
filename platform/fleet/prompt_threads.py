"""Threads in which prompts are tokenised, taken in turns by tenants.

A tenant's prompt waits for at most one of each other tenant. The memory for bodies bounds the queue
(:mod:`fairserve.platform.serving.bodies`). O(1) per prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from fairserve.platform.base.turns import Turns

T = TypeVar("T")


class PromptThreads:
    """Runs work in a few threads, in turns of tenants. Belongs to one event loop."""

    def __init__(self, threads: int, name: str = "tokenizer") -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._turns = Turns(threads)

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, once it is the tenant's turn.

        Cancellation removes it from the queue; work that has started keeps its thread until its end.
        """
        await self._turns.take(tenant)
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        running.add_done_callback(partial(self._ended, tenant))
        return await asyncio.shield(running)

    def _ended(self, tenant: str, running: asyncio.Future[T]) -> None:
        if not running.cancelled():
            running.exception()  # retrieved, in case the waiter was cancelled
        self._turns.release(tenant)

    def close(self) -> None:
        """End the threads and drop queued work."""
        self._executor.shutdown(wait=False, cancel_futures=True)
