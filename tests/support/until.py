"""Waiting on the event loop for what other tasks come to."""

import asyncio


async def until(probe, deadline_s=30):
    """Let other tasks run until the answer is true; returns it."""
    async with asyncio.timeout(deadline_s):
        while not (found := probe()):  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.001)
    return found
