"""Long-lived responses: a stream ends soon after its reader loses the permission to read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from fairserve.platform.base.errors import FairServeError

Check = Callable[[], Awaitable[None]]
"""Check of the reader's permission; raises FairServeError if it is revoked."""


CHECK_S = 5.0
"""Seconds between checks of the key or sign-in behind an open stream of events."""


async def while_allowed(
    pieces: AsyncIterator[bytes],
    check: Check,
    ending: Callable[[FairServeError], bytes],
    every_s: float = CHECK_S,
) -> AsyncIterator[bytes]:
    """Yield the chunks of a stream and run the check every ``every_s`` seconds, also while idle.

    If the check raises, ``ending`` of its error is the last chunk, and ``pieces`` is closed.
    """
    loop = asyncio.get_running_loop()
    next_check_s = loop.time() + every_s
    async with aclosing(pieces):  # type: ignore[type-var]
        piece: asyncio.Future[bytes] | None = None
        try:
            while True:
                if piece is None:
                    piece = asyncio.ensure_future(anext(pieces))
                await asyncio.wait({piece}, timeout=max(0.0, next_check_s - loop.time()))
                if loop.time() >= next_check_s:
                    try:
                        await check()
                    except FairServeError as error:
                        yield ending(error)
                        return
                    next_check_s = loop.time() + every_s
                if piece.done():
                    try:
                        found = piece.result()
                    except StopAsyncIteration:
                        return
                    piece = None
                    yield found
        finally:
            if piece is not None:
                piece.cancel()
                await asyncio.wait({piece})
