"""Blocking work of the event loop in threads that a cancellation does not abandon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_its_end(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run blocking work in a thread; a cancellation waits until it has ended.

    ``asyncio.to_thread`` abandons the thread then: a server that stops would close the database under
    it, and the thread's connection would stay open.
    """
    thread = asyncio.create_task(asyncio.to_thread(work, *arguments, **options))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.gather(thread, return_exceptions=True)
        raise
