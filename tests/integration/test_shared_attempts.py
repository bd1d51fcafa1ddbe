"""Sign-ins at several servers are counted together in Redis, and alone where it does not answer."""

import asyncio
import contextlib

import pytest
import redis
from processes import free_port
from until import until

from fairserve.platform.base.errors import AuthenticationError, RateLimitedError
from fairserve.platform.base.redis_client import redis_client
from fairserve.platform.console.sign_in import limit as sign_in_limit
from fairserve.platform.console.sign_in.limit import WINDOW_S, SignInLimit
from fairserve.platform.console.sign_in.shared_attempts import SharedAttempts

PREFIX = "fairserve:{test}"


@contextlib.asynccontextmanager
async def servers(url, limit=3):
    async with contextlib.AsyncExitStack() as stack:
        limits = []
        for _ in range(2):
            client = await stack.enter_async_context(contextlib.aclosing(redis_client(url)))
            limits.append(SignInLimit(limit))
            limits[-1].shared = SharedAttempts(client, PREFIX, b"secret")
        yield limits


async def wrong(limit, address="a"):
    with pytest.raises(AuthenticationError):
        async with limit.attempt(address):
            raise AuthenticationError("wrong")


async def right(limit, address="a"):
    async with limit.attempt(address):
        pass


async def test_wrong_keys_at_all_servers_count_and_right_ones_do_not(redis_url):
    async with servers(redis_url) as (first, second):
        for limit in (first, second, first):
            await right(limit)
            await wrong(limit)
        for limit in (first, second):
            with pytest.raises(RateLimitedError) as rejected:
                await right(limit)
            assert 0 < int(rejected.value.headers["Retry-After"]) <= WINDOW_S + 1
        await right(second, "b")
        with redis.Redis.from_url(redis_url) as client:
            (key,) = client.keys(f"{PREFIX}:attempts:*")
            assert 0 < client.pttl(key) <= 1000 * WINDOW_S


async def test_attempts_at_a_time_do_not_pass_the_limit(redis_url):
    async with servers(redis_url) as limits:
        checked, outcomes = asyncio.Event(), []

        async def attempt(number):
            try:
                async with limits[number % 2].attempt("a"):
                    outcomes.append("checked")
                    await checked.wait()
                    raise AuthenticationError("wrong")
            except (AuthenticationError, RateLimitedError) as error:
                outcomes.append(type(error))

        tasks = [asyncio.create_task(attempt(number)) for number in range(6)]
        await until(lambda: len(outcomes) == 6)
        checked.set()
        await asyncio.gather(*tasks)
        assert outcomes.count(AuthenticationError) == 3
        assert outcomes.count(RateLimitedError) == 3


async def test_sign_ins_of_a_key_at_all_servers_are_limited(redis_url, monkeypatch):
    monkeypatch.setattr(sign_in_limit, "MAX_SIGN_INS", 3)
    async with servers(redis_url) as (first, second):
        for limit in (first, second, first):
            await limit.admit("key")
        for limit in (first, second):
            with pytest.raises(RateLimitedError):
                await limit.admit("key")
        await second.admit("another")


async def test_without_redis_each_server_has_its_own_limit():
    async with servers(f"redis://127.0.0.1:{free_port()}/0") as (first, second):
        for _ in range(3):
            await wrong(first)
        with pytest.raises(RateLimitedError):
            await right(first)
        await right(second)
