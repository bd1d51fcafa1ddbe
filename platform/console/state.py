"""In-memory state of the console: failed sign-ins, open live pages, shared parts of pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.console.oidc.loading import load_provider
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.console.sign_in_limit import SignInLimit
from fairserve.platform.tenancy.failed_keys import FailureEntries

MAX_SHARED = 100


class Streams:
    """Counter of open live pages, with a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open = 0

    def check(self) -> None:
        """Raise UnavailableError at the limit."""
        if self.open >= self._limit:
            raise UnavailableError(
                f"{self._limit} live pages are open, which is the limit; close one and reload",
                code="too_many_streams",
                headers={"Retry-After": "30"},
            )

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a live page within the block."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


class Shared:
    """Cache of parts of live pages of one kind, rendered once per moment. Keeps the last moment."""

    def __init__(self) -> None:
        self._moment = -1
        self._made: dict[Hashable, bytes] = {}

    async def get(self, moment: int, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the part of a moment, rendered if it is missing."""
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
    """State of one server's console."""

    def __init__(self, settings: ConsoleSettings) -> None:
        """Raises ValueError if an OpenID provider is configured and the extra ``oidc`` is missing."""
        self.overviews = Shared()
        self.sign_ins = SignInLimit(settings.console_sign_ins, settings.console_sign_ins_in_all)
        self.sign_in_failures = FailureEntries()
        self.people_without_role = FailureEntries()
        """Rejected people of the OpenID provider, by person."""
        self.oidc = load_provider(settings)
        """The OpenID provider; None if none is configured."""
        self.warned_of_proxy = False
        """True after the warning about ignored proxy headers was logged."""
        self.streams = Streams(settings.console_streams)
