"""Waiting on the event loop for the effects of other tasks."""

import asyncio
import types
from contextlib import suppress

from fairserve.platform.base.errors import UnavailableError

DEADLINE_S = 90


async def until(probe):
    """Let other tasks run until the result is true; return it."""
    async with asyncio.timeout(DEADLINE_S):
        while not (found := probe()):  # noqa: ASYNC110  it sends no event
            await asyncio.sleep(0.001)
    return found


async def until_accepted(probe):
    """Await ``probe()`` until it is true and not rejected as unavailable; return its result."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(UnavailableError):
                if found := await probe():
                    return found
            await asyncio.sleep(0.001)


@types.coroutine
def turn():
    """Let each other task that can run now run once. No time passes."""
    yield


async def settle():
    """Let all other tasks run until they wait for something outside the loop."""
    ready = asyncio.get_running_loop()._ready
    await turn()
    while ready:
        await turn()
