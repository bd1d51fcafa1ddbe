"""In-memory state of the console: failed sign-ins, open live pages, shared parts of pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.console.known_names import KnownNames
from fairserve.platform.console.oidc.loading import load_provider
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.console.sign_in.limit import SignInLimit
from fairserve.platform.console.trusted_sessions import TrustedSessions
from fairserve.platform.tenancy.failed_keys import FailureEntries

MAX_SHARED = 100
PAGE_SHARE = 1 / 2
"""Share of the live pages that one tenant, or the operators, may have of those that others leave."""


MAX_STREAMS = 200
"""Live pages that may be open at a time; further pages are not live."""


class Streams:
    """Counter of open live pages, with a limit and a share of each tenant."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self._pages = SharedLimit(limit, PAGE_SHARE)

    @property
    def open(self) -> int:
        """Return the number of open live pages."""
        return self._pages.used

    def check(self, sharer: str) -> None:
        """Raise UnavailableError at the limit, or at the share of a tenant."""
        full = self._pages.full(sharer)
        if full is not None:
            number = self._pages.limit if full == "all" else self._pages.of(sharer)
            whose = "" if full == "all" else " of this tenant"
            raise UnavailableError(
                f"{number} live pages{whose} are open, which is the limit; close one and reload",
                code="too_many_streams",
                headers={"Retry-After": "30"},
            )

    @contextmanager
    def one(self, sharer: str) -> Iterator[None]:
        """Count a live page within the block."""
        self._pages.add(sharer)
        try:
            yield
        finally:
            self._pages.release(sharer)


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
        self.sessions = TrustedSessions()
        self.names = KnownNames()
        self.set_up = False
        """True once a tenant, an app and a call were found."""
        self.sign_ins = SignInLimit()
        self.sign_in_failures = FailureEntries()
        self.people_without_role = FailureEntries()
        """Rejected people of the OpenID provider, by person."""
        self.oidc = load_provider(settings)
        """The OpenID provider; None if none is configured."""
        self.warned_of_proxy = False
        """True after the warning about ignored proxy headers was logged."""
        self.streams = Streams()
