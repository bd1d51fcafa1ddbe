"""Work that a process does again and again while it speaks for the servers that share its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable


class WhileSpeaking:
    """The times of one work. Belongs to one event loop."""

    def __init__(self, interval_s: float, speaks: Callable[[], bool]) -> None:
        """``speaks`` returns whether the process speaks now."""
        self._interval_s, self._speaks = interval_s, speaks
        self._due = asyncio.Event()

    def begin(self) -> None:
        """Let the next time be soon: this process speaks from now on."""
        self._due.set()

    async def times(self) -> AsyncIterator[None]:
        """Yield every ``interval_s`` and soon after :meth:`begin` while the process speaks, for ever."""
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            if self._speaks():
                yield
