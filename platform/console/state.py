"""State of the console in memory: wrong sign-ins, the number of open live pages, and what they show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.console.sign_in_limit import SignInFailures, SignInLimit

MAX_SHARED = 100


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

    def __init__(self, settings: ConsoleSettings) -> None:
        self.overviews = Shared()
        self.sign_ins = SignInLimit(settings.console_sign_ins, settings.console_sign_ins_in_all)
        self.sign_in_failures = SignInFailures()
        self.warned_of_proxy = False
        """Whether the log has that headers of a proxy are ignored."""
        self.streams = Streams(settings.console_streams)
