"""Waiting on the event loop for the effects of other tasks."""

import asyncio

DEADLINE_S = 90


async def until(probe):
    """Let other tasks run until the result is true; return it."""
    async with asyncio.timeout(DEADLINE_S):
        while not (found := probe()):  # noqa: ASYNC110  it sends no event
            await asyncio.sleep(0.001)
    return found


async def settle():
    """Let all other tasks run until they wait for something outside the loop."""
    ready = asyncio.get_running_loop()._ready
    await asyncio.sleep(0)
    while ready:  # noqa: ASYNC110  the loop itself is asked
        await asyncio.sleep(0)
