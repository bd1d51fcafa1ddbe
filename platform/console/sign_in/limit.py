"""Limits of failed sign-ins, per address and over all addresses, and of sign-ins of one key or person.

A failed sign-in is a wrong key, or an answer of the OpenID provider that is not valid. An address with
too many of them is rejected for some time. If all addresses together have too many,
no attempt is rejected, but each waits before its key is checked: an attacker with many addresses is
slowed down, and a valid key still works. An IPv6 client counts by its /64 network.

Sign-ins that succeed are limited by key or person, because each adds a row to the audit log.

Servers that share an order have these limits together
(:class:`~fairserve.platform.console.sign_in.shared_attempts.SharedAttempts`); the delay depends on the
wrong keys at each.

Weakness: concurrent attempts above ``MAX_WAITING`` do not wait. Then only the 256 random bits protect
the keys.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fairserve.platform.base.client_address import address_block
from fairserve.platform.base.errors import AuthenticationError, RateLimitedError
from fairserve.throttling.overload.window import SlidingLog

if TYPE_CHECKING:
    from fairserve.platform.console.sign_in.shared_attempts import SharedAttempts

WINDOW_S = 300.0
MAX_WRONG = 10
"""Wrong keys of one address within ``WINDOW_S``; further attempts are rejected."""
MAX_WRONG_IN_ALL = 100
"""Wrong keys of all addresses within ``WINDOW_S``, above which each attempt waits."""
DELAY_S = 3.0
"""Delay of an attempt in seconds while all addresses together have too many wrong keys."""
MAX_ADDRESSES = 10_000
"""Maximum number of counted addresses; failed sign-ins of others count in the total only."""
MAX_SIGN_INS = 100
"""Sign-ins of one key or person within ``WINDOW_S``."""
MAX_WAITING = 1_000
"""Maximum number of concurrently waiting attempts."""
_ALL = ""


class SignInLimit:
    """Bounded counter of wrong keys of the last five minutes, for use on the event loop."""

    def __init__(
        self,
        limit: int = MAX_WRONG,
        limit_in_all: int = MAX_WRONG_IN_ALL,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limit = limit
        self._limit_in_all = limit_in_all
        self._clock = clock
        self._sleep = sleep
        self._wrong = SlidingLog(WINDOW_S)
        """Wrong keys by address."""
        self._wrong_in_all = SlidingLog(WINDOW_S)
        self._signed_in = SlidingLog(WINDOW_S)
        """Sign-ins by key or person."""
        self._attempts: Counter[str] = Counter()
        """Attempts in progress by address."""
        self._waiting = 0
        self.shared: SharedAttempts | None = None
        """Attempts at all servers; None if there is one."""

    @asynccontextmanager
    async def attempt(self, address: str) -> AsyncIterator[None]:
        """Wait if necessary, then run the block, which checks a key; its AuthenticationError counts.

        Raises RateLimitedError while the address has too many wrong keys. Attempts in progress count, so
        that parallel attempts do not circumvent the limit.
        """
        block = address_block(address)
        self._check(block)
        self._attempts[block] += 1
        try:
            async with self._attempt_in_all(block):
                await self._delay()
                yield
        except AuthenticationError:
            self._record(block)
            raise
        finally:
            self._attempts[block] -= 1
            if not self._attempts[block]:
                del self._attempts[block]

    @asynccontextmanager
    async def _attempt_in_all(self, block: str) -> AsyncIterator[None]:
        """Count an attempt at all servers, unless the block ends without AuthenticationError."""
        if self.shared is None or len(self._wrong) >= MAX_ADDRESSES:
            yield
            return
        name = f"wrong {block}"
        token, wait_s = await self.shared.begin(name, self._limit, WINDOW_S)
        if wait_s:
            raise _rejected("too many failed sign-ins", wait_s)
        try:
            yield
        except AuthenticationError:
            raise
        except BaseException:
            await self.shared.undo(name, token)
            raise
        await self.shared.undo(name, token)

    async def admit(self, owner: str) -> None:
        """Count a sign-in of a key or a person. Raises RateLimitedError if it has too many."""
        now_s = self._clock()
        if self._signed_in.count(owner, now_s) >= MAX_SIGN_INS:
            wait_s = self._signed_in.free_after_s(owner, MAX_SIGN_INS, now_s, record_now=False)
            raise _rejected("too many sign-ins", wait_s)
        self._signed_in.forget_idle(now_s)
        self._signed_in.record(owner, MAX_SIGN_INS, now_s)
        if self.shared is not None:
            _, wait_s = await self.shared.begin(f"signed in {owner}", MAX_SIGN_INS, WINDOW_S)
            if wait_s:
                raise _rejected("too many sign-ins", wait_s)

    def _check(self, block: str) -> None:
        now_s = self._clock()
        wrong = self._wrong.count(block, now_s)
        if wrong + self._attempts[block] < self._limit:
            return
        # Attempts in progress end soon; a reached limit is released when its oldest wrong key expires.
        wait_s = self._wrong.free_after_s(block, self._limit, now_s, record_now=False)
        raise _rejected("too many failed sign-ins", wait_s)

    async def _delay(self) -> None:
        in_all = self._wrong_in_all.count(_ALL, self._clock())
        if in_all < self._limit_in_all or self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        try:
            await self._sleep(DELAY_S)
        finally:
            self._waiting -= 1

    def _record(self, block: str) -> None:
        now_s = self._clock()
        self._wrong_in_all.record(_ALL, self._limit_in_all, now_s)
        self._wrong.forget_idle(now_s)
        if self._wrong.count(block, now_s) or len(self._wrong) < MAX_ADDRESSES:
            self._wrong.record(block, self._limit, now_s)


def _rejected(what: str, wait_s: float) -> RateLimitedError:
    after_s = max(1, round(wait_s + 0.5))
    return RateLimitedError(f"{what}; retry in {after_s} s", headers={"Retry-After": str(after_s)})
