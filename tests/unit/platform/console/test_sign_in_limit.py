"""Limits on wrong keys: by address, in total, and on their entries in the audit log."""

import asyncio

import pytest

from fairserve.platform.base.errors import AuthenticationError, RateLimitedError
from fairserve.platform.console import sign_in_limit
from fairserve.platform.console.sign_in_limit import (
    DELAY_S,
    MAX_ADDRESSES,
    MAX_ENTRIES,
    SignInFailures,
    SignInLimit,
)


class World:
    """A limit with a clock of its own, and the waits that it caused."""

    def __init__(self, limit=3, in_all=1000):
        self.now_s = 0.0
        self.waits = []
        self.limit = SignInLimit(limit, in_all, clock=lambda: self.now_s, sleep=self._sleep)

    async def _sleep(self, seconds):
        self.waits.append(seconds)
        await asyncio.sleep(0)

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


async def test_attempts_at_the_same_time_are_no_way_around():
    world = World()
    checked = asyncio.Event()

    async def attempt():
        async with world.limit.attempt("a"):
            await checked.wait()
            raise AuthenticationError("wrong")

    attempts = [asyncio.create_task(attempt()) for _ in range(10)]
    await asyncio.sleep(0)
    checked.set()
    ends = await asyncio.gather(*attempts, return_exceptions=True)
    assert [type(end) for end in ends] == [AuthenticationError] * 3 + [RateLimitedError] * 7


async def test_an_ipv6_client_counts_by_its_network():
    world = World()
    for number in range(3):
        await world.wrong(f"2001:db8:1:2::{number}")
    with pytest.raises(RateLimitedError):
        await world.right("2001:db8:1:2:3:4:5:6")
    await world.right("2001:db8:1:3::1")


async def test_too_many_wrong_keys_in_all_delay_and_reject_nobody():
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


async def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(sign_in_limit, "MAX_WAITING", 2)
    world = World(in_all=1)
    await world.wrong("a")
    await asyncio.gather(*(world.right(f"b{number}") for number in range(5)))
    assert world.waits == [DELAY_S] * 2


async def test_addresses_are_bounded_and_new_ones_are_not_rejected():
    world = World(in_all=MAX_ADDRESSES + 10)
    for number in range(MAX_ADDRESSES + 3):
        await world.wrong(str(number))
    assert len(world.limit._wrong) == MAX_ADDRESSES
    for _ in range(5):
        await world.wrong("another")
    await world.right("another")


def test_an_address_gets_one_entry_and_all_together_so_many():
    now = [0.0]
    failures = SignInFailures(clock=lambda: now[0])
    assert [failures.count("a") for _ in range(4)] == [1, None, None, None]
    assert failures.count("b") == 4
    logged = [failures.count(f"c{number}") for number in range(1000)]
    assert logged == [1] * (MAX_ENTRIES - 2) + [None] * (1000 - MAX_ENTRIES + 2)
    now[0] = 301.0
    assert failures.count("a") == 1000 - MAX_ENTRIES + 3
