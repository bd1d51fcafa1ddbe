"""Wrong keys are limited by address and in total, and so are their audit log entries."""

import asyncio

import pytest
from until import settle, turn

from fairserve.platform.base.errors import AuthenticationError, RateLimitedError
from fairserve.platform.console.sign_in import limit as sign_in_limit
from fairserve.platform.console.sign_in.limit import (
    DELAY_S,
    MAX_ADDRESSES,
    SignInLimit,
)


class World:
    """A limit with a manual clock; records the delays that it imposed."""

    def __init__(self, limit=3, in_all=1000):
        self.now_s = 0.0
        self.waits = []
        self.limit = SignInLimit(limit, in_all, clock=lambda: self.now_s, sleep=self._sleep)

    async def _sleep(self, seconds):
        self.waits.append(seconds)
        await turn()

    async def wrong(self, address):
        with pytest.raises(AuthenticationError):
            async with self.limit.attempt(address):
                raise AuthenticationError("wrong")

    async def right(self, address):
        async with self.limit.attempt(address):
            pass


async def test_wrong_keys_are_counted_by_address():
    world = World()
    for _ in range(3):
        await world.right("a")
        await world.wrong("a")
    with pytest.raises(RateLimitedError) as rejected:
        await world.right("a")
    assert rejected.value.headers == {"Retry-After": "300"}
    await world.right("b")
    world.now_s = 299.0
    with pytest.raises(RateLimitedError):
        await world.right("a")
    world.now_s = 300.5
    await world.right("a")
    assert world.waits == []


async def test_concurrent_attempts_do_not_bypass_the_limit():
    world = World()
    checked = asyncio.Event()

    async def attempt():
        async with world.limit.attempt("a"):
            await checked.wait()
            raise AuthenticationError("wrong")

    attempts = [asyncio.create_task(attempt()) for _ in range(10)]
    await settle()
    checked.set()
    ends = await asyncio.gather(*attempts, return_exceptions=True)
    assert [type(end) for end in ends] == [AuthenticationError] * 3 + [RateLimitedError] * 7


async def test_an_ipv6_client_is_counted_by_its_network():
    world = World()
    for number in range(3):
        await world.wrong(f"2001:db8:1:2::{number}")
    with pytest.raises(RateLimitedError):
        await world.right("2001:db8:1:2:3:4:5:6")
    await world.right("2001:db8:1:3::1")


async def test_the_total_limit_delays_attempts_but_rejects_none():
    world = World(in_all=5)
    for number in range(5):
        await world.wrong(f"10.0.0.{number}")
    assert world.waits == []
    await world.wrong("10.0.1.1")
    await world.right("10.0.1.2")
    assert world.waits == [DELAY_S, DELAY_S]
    world.now_s = 300.5
    await world.right("10.0.1.2")
    assert len(world.waits) == 2


async def test_waiting_attempts_are_bounded(monkeypatch):
    monkeypatch.setattr(sign_in_limit, "MAX_WAITING", 2)
    world = World(in_all=1)
    await world.wrong("a")
    await asyncio.gather(*(world.right(f"b{number}") for number in range(5)))
    assert world.waits == [DELAY_S] * 2


async def test_tracked_addresses_are_bounded_without_rejecting_new_ones():
    world = World(in_all=MAX_ADDRESSES + 10)
    for number in range(MAX_ADDRESSES + 3):
        await world.wrong(str(number))
    assert len(world.limit._wrong) == MAX_ADDRESSES
    for _ in range(5):
        await world.wrong("another")
    await world.right("another")
