"""What the console keeps in memory: wrong sign-ins by address, how many live pages are open, and what
they all show.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager

from fairserve.platform.errors import RateLimitedError, UnavailableError
from fairserve.platform.settings import Settings
from fairserve.throttling.window import SlidingLog

WINDOW_S = 300.0
MAX_ADDRESSES = 10_000
MAX_SHARED = 100


class SignInLimit:
    """Wrong keys of the last five minutes, by the address that they came from. Bounded."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._wrong = SlidingLog(WINDOW_S)

    def check(self, address: str) -> None:
        """Raises RateLimitedError while too many were wrong."""
        now_s = self._clock()
        if self._wrong.count(self._key(address), now_s) >= self._limit:
            wait_s = self._wrong.free_after_s(
                self._key(address), self._limit, now_s, record_now=False
            )
            after_s = max(1, round(wait_s + 0.5))
            raise RateLimitedError(
                f"too many wrong keys; try again in {after_s} s",
                headers={"Retry-After": str(after_s)},
            )

    def wrong(self, address: str) -> None:
        """A key was wrong."""
        now_s = self._clock()
        self._wrong.forget_idle(now_s)
        self._wrong.record(self._key(address), self._limit, now_s)

    def _key(self, address: str) -> str:
        # A flood from very many addresses is counted as one, so that memory stays bounded.
        known = self._wrong.count(address, self._clock()) > 0
        return address if known or len(self._wrong) < MAX_ADDRESSES else "*"


class Streams:
    """How many live pages are open, and how many may be."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open = 0

    def check(self) -> None:
        """Raises UnavailableError if there are too many."""
        if self.open >= self._limit:
            raise UnavailableError(
                f"{self._limit} live pages are the most allowed",
                code="too_many_streams",
                headers={"Retry-After": "30"},
            )

    @contextmanager
    def one(self) -> Iterator[None]:
        """While a page is live."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


class Shared:
    """What all live pages of one kind show of a moment, made once. Only the last moment is kept."""

    def __init__(self) -> None:
        self._moment = -1
        self._made: dict[Hashable, bytes] = {}

    async def get(self, moment: int, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Of this moment, made if it is not there."""
        if moment > self._moment:
            self._moment, self._made = moment, {}
        if moment < self._moment:
            return await make()
        if key not in self._made:
            made = await make()
            if moment == self._moment and len(self._made) < MAX_SHARED:
                self._made[key] = made
            return made
        return self._made[key]


class ConsoleState:
    """All of it, of one server."""

    def __init__(self, settings: Settings) -> None:
        self.overviews = Shared()
        self.sign_ins = SignInLimit(settings.console_sign_ins)
        self.streams = Streams(settings.console_streams)
