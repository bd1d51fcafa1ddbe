"""Stored answers are read along, replayed, bounded, and never kept after a failure, in every store.

The store of one process is that of both servers; over Redis each has one of its own.
"""

import asyncio
import math
from functools import partial

import pytest
import redis
from redis_process import RedisProcess
from until import settle, until, until_accepted

from fairserve.platform.base.errors import ConflictError, UnavailableError, UnprocessableError
from fairserve.platform.base.redis_client import redis_client
from fairserve.platform.control.options import ControlOptions
from fairserve.platform.serving.completions.idempotency import (
    MAX_WAITING,
    IdempotentAnswers,
    IdempotentRequest,
    OwnAnswers,
)
from fairserve.platform.serving.completions.redis_answers import RedisAnswers

PREFIX = "fairserve:{test}"
OFTEN = {"settle_s": 0.5, "renew_s": 0.05}


class Producer:
    """Writes parts as far as the test allows."""

    def __init__(self, *parts, succeeds=True):
        self.parts, self.succeeds = parts, succeeds
        self.succeeded = False
        self._allowed = asyncio.Semaphore(0)

    def allow(self, parts):
        for _ in range(parts):
            self._allowed.release()

    async def produce(self, sink):
        sink.start(200, {"a": "b"})
        for part in self.parts:
            await self._allowed.acquire()
            sink.write(part)
        self.succeeded = self.succeeds


class Sink:
    is_full = False

    def __init__(self):
        self.body, self.head = b"", None
        self.started, self.wrote = asyncio.Event(), asyncio.Event()

    def start(self, status, headers):
        self.head = status, headers
        self.started.set()

    def write(self, body):
        self.body += body
        self.wrote.set()


def request(key="k", fingerprint="f", *, tenant="tenant", app="app"):
    return IdempotentRequest(tenant, app, key, fingerprint)


async def replay(buffer, sink=None):
    sink = sink or Sink()
    await buffer.replay(sink, {})
    return sink.body


class OwnWorld:
    """One server, by two names."""

    def __init__(self, **bounds):
        self.now_s = 0.0
        store = OwnAnswers(clock=lambda: self.now_s, **bounds)
        self.first = self.second = IdempotentAnswers(store)

    async def ready(self):
        pass

    stored = ready

    async def pass_s(self, seconds):
        self.now_s += seconds

    async def close(self):
        await self.first.close()


class SharedWorld:
    """Two servers over one Redis."""

    def __init__(self, url, wait_s=60.0, **bounds):
        more = OFTEN | bounds
        self.clients = [redis_client(url) for _ in range(2)]
        self.stores = [RedisAnswers(each, PREFIX, b"secret", **more) for each in self.clients]
        self.first, self.second = (IdempotentAnswers(each, wait_s=wait_s) for each in self.stores)
        self.first.start()
        self.second.start()

    async def ready(self):
        """Wait until claims are accepted."""
        for server in (self.first, self.second):
            name = f"ready {id(server)}"
            answer = partial(finish, server, name, b"", succeeds=False)
            await until_accepted(lambda answer=answer: is_empty(answer()))
        await self.stored()

    async def stored(self):
        """Wait until the answers that are complete are in Redis."""
        held = [store._held for store in self.stores]
        await until(lambda: not any(each.ended for one in held for each in one.values()))

    async def pass_s(self, seconds):
        await asyncio.sleep(seconds)

    async def close(self):
        await self.first.close()
        await self.second.close()
        for client in self.clients:
            await client.aclose()


async def is_empty(answer):
    assert await answer == b""
    return True


@pytest.fixture(params=["own", "redis"])
async def world_of(request):
    """Return a maker of the two servers, with bounds."""
    worlds = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""

    async def made(**bounds):
        world = OwnWorld(**bounds) if request.param == "own" else SharedWorld(url, **bounds)
        worlds.append(world)
        await world.ready()
        return world

    yield made
    for world in worlds:
        await world.close()


@pytest.fixture
async def shared(redis_url):
    world = SharedWorld(redis_url)
    await world.ready()
    yield world
    await world.close()


async def begin(server, producer, *name, **more):
    buffer, replayed = await server.begin(request(*name, **more), producer)
    assert not replayed
    return buffer


async def finish(server, name, *parts, tenant="tenant", **more):
    producer = Producer(*parts, **more)
    producer.allow(len(parts))
    return await replay(await begin(server, producer, name, tenant=tenant))


async def has(server, name):
    return await server.find(request(name)) is not None


# --- every store --------------------------------------------------------------------------------------


async def test_early_and_late_readers_get_the_same_answer(world_of):
    world, producer = await world_of(), Producer(b"one", b"two", b"three")
    first, second = Sink(), Sink()
    early = asyncio.create_task(replay(await begin(world.first, producer), first))
    await first.started.wait()
    assert first.body == b""
    producer.allow(1)
    await first.wrote.wait()
    midway = asyncio.create_task(replay(await world.first.find(request()), second))
    await second.wrote.wait()
    assert first.body == second.body == b"one"
    producer.allow(2)
    assert await early == await midway == b"onetwothree"
    late = Sink()
    assert await replay(await world.second.find(request()), late) == b"onetwothree"
    assert late.head == first.head == (200, {"a": "b"})


async def test_a_disconnecting_reader_does_not_end_the_call(world_of):
    world, producer = await world_of(), Producer(b"one", b"two")
    sink = Sink()
    reader = asyncio.create_task(replay(await begin(world.first, producer), sink))
    await sink.started.wait()
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    producer.allow(2)
    assert await replay(await world.second.find(request())) == b"onetwo"


async def test_another_request_with_the_same_key_is_rejected(world_of):
    world, producer = await world_of(), Producer(b"x")
    await begin(world.first, producer)
    for server in (world.first, world.second):
        with pytest.raises(UnprocessableError):
            await server.find(request(fingerprint="another"))
        with pytest.raises(UnprocessableError):
            await server.begin(request(fingerprint="another"), Producer())
    producer.allow(1)
    await world.second.find(request())
    for server in (world.first, world.second):
        with pytest.raises(UnprocessableError):
            await server.find(request(fingerprint="another"))
        assert await server.find(request(fingerprint="another", app="another app")) is None


async def test_a_failure_is_not_stored(world_of):
    world = await world_of()
    assert await finish(world.first, "k", b"error", succeeds=False) == b"error"
    assert await world.second.find(request()) is None
    assert await finish(world.second, "k", b"answer") == b"answer"


async def test_one_of_two_requests_at_a_time_makes_the_call(world_of):
    world = await world_of()
    producers = [Producer(b"first"), Producer(b"second")]
    for producer in producers:
        producer.allow(1)
    servers = (world.first, world.second)
    pairs = zip(servers, producers, strict=True)
    begun = await asyncio.gather(*(each.begin(request(), producer) for each, producer in pairs))
    assert sorted(replayed for _, replayed in begun) == [False, True]
    one, other = [await replay(buffer) for buffer, _ in begun]
    assert one == other
    assert [producer.succeeded for producer in producers].count(True) == 1


async def test_stored_answers_are_bounded_by_number_and_bytes(world_of):
    world = await world_of(max_entries=3, max_bytes=100)
    for n in range(5):
        await finish(world.first, f"k{n}", b"x")
        await world.stored()
    assert [await has(world.second, f"k{n}") for n in range(5)] == [False, False, True, True, True]
    await finish(world.first, "big", b"x" * 99)
    await world.stored()
    assert not await has(world.second, "k3")
    assert await has(world.second, "big")
    await finish(world.first, "too big", b"x" * 101)
    await world.stored()
    assert not await has(world.second, "too big")
    assert await has(world.second, "big")


async def test_stored_answers_expire(world_of):
    world = await world_of(retention_s=0.5)
    await finish(world.first, "k", b"x")
    await world.stored()
    await world.pass_s(0.6)
    assert not await has(world.first, "k")
    assert not await has(world.second, "k")


@pytest.mark.parametrize(("number", "size"), [(50, 1), (4, 60)])
async def test_a_tenant_evicts_no_answer_of_another_that_has_fewer(number, size, world_of):
    world = await world_of(max_entries=10, max_bytes=100)
    await finish(world.first, "charged once", b"x", tenant="quiet")
    for each in range(number):
        await finish(world.first, f"k{each}", b"x" * size, tenant="loud")
        await world.stored()
    assert await has(world.second, "charged once")
    assert await has(world.second, f"k{number - 1}")
    assert not await has(world.second, "k0")


# --- several servers ----------------------------------------------------------------------------------


async def test_a_request_waits_for_the_end_at_another_server(shared):
    producer = Producer(b"one", b"two")
    await begin(shared.first, producer)
    waiting = asyncio.create_task(shared.second.find(request()))
    await until(lambda: shared.second._waiting.used == 1)
    producer.allow(1)
    await settle()
    assert not waiting.done()
    producer.allow(1)
    assert await replay(await waiting) == b"onetwo"
    assert shared.second._waiting.used == 0


async def test_a_request_that_waited_for_a_failure_makes_the_call(shared):
    failing = Producer(b"error", succeeds=False)
    await begin(shared.first, failing)
    own = Producer(b"answer")
    waiting = asyncio.create_task(shared.second.begin(request(), own))
    await until(lambda: shared.second._waiting.used == 1)
    failing.allow(1)
    buffer, replayed = await waiting
    own.allow(1)
    assert (await replay(buffer), replayed) == (b"answer", False)


async def test_a_wait_ends_with_409_and_at_a_drain(redis_url):
    world = SharedWorld(redis_url, wait_s=0.1)
    await world.ready()
    await begin(world.first, Producer(b"x"))
    with pytest.raises(ConflictError) as error:
        await world.second.find(request())
    assert (error.value.code, error.value.headers) == (
        "idempotency_key_in_progress",
        {"Retry-After": "2"},
    )
    world.second._wait_s = 60.0
    waiting = asyncio.create_task(world.second.find(request()))
    await until(lambda: world.second._waiting.used == 1)
    world.second.pause()
    with pytest.raises(UnavailableError, match="is stopping"):
        await waiting
    await world.close()


async def test_waiting_requests_of_a_tenant_leave_places_for_others(shared):
    await begin(shared.first, Producer(b"x"))
    await begin(shared.first, Producer(b"x"), "theirs", tenant="quiet")
    shared.second._waiting.add("tenant", MAX_WAITING // 4)
    with pytest.raises(ConflictError):
        await shared.second.find(request())
    waiting = asyncio.create_task(shared.second.find(request("theirs", tenant="quiet")))
    await until(lambda: shared.second._waiting.of("quiet") == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_neither_keys_nor_prompts_are_in_redis(shared, redis_url):
    await begin(shared.first, Producer(b"x"), "running key", "hash of a prompt")
    assert await finish(shared.first, "a key", b"answer") == b"answer"
    await shared.stored()
    with redis.Redis.from_url(redis_url) as client:
        texts = [*client.keys(), *client.zrange(f"{PREFIX}:answers:ends", 0, -1)]
        for key in client.keys(f"{PREFIX}:answer:*"):
            texts += [each for pair in client.hgetall(key).items() for each in pair]
    assert b"answer" in texts
    for secret in (b"running key", b"a key", b"hash of a prompt"):
        assert not any(secret in text for text in texts)


async def test_a_claim_outlives_the_call_of_a_server_that_died(shared, redis_url):
    await begin(shared.first, Producer(b"x"))
    with redis.Redis.from_url(redis_url) as client:
        (key,) = client.keys(f"{PREFIX}:answer:*")
        assert client.pttl(key) > 1000 * ControlOptions().lease_s
        client.pexpire(key, 50_000)
        await until(lambda: client.pttl(key) > 60_000)


async def test_a_claim_that_was_taken_is_left_to_its_owner(shared, redis_url):
    producer = Producer(b"x", succeeds=False)
    await begin(shared.first, producer)
    with redis.Redis.from_url(redis_url) as client:
        (key,) = client.keys(f"{PREFIX}:answer:*")
        client.hset(key, "owner", "another")
        producer.allow(1)
        await shared.stored()
        assert client.hget(key, "owner") == b"another"


@pytest.mark.parametrize("late", [b"late", None], ids=["an answer", "a failure"])
async def test_a_server_that_was_suspended_leaves_the_answer_of_another(shared, redis_url, late):
    """Its claim has expired, and another server has made the call since."""
    store, suspended = shared.stores[0], Producer(late or b"x", succeeds=late is not None)
    await begin(shared.first, suspended)
    write, entered, runs_on = store._write, asyncio.Event(), asyncio.Event()

    async def waits():
        entered.set()
        await runs_on.wait()

    store._write = waits
    await entered.wait()
    with redis.Redis.from_url(redis_url) as client:
        (key,) = client.keys(f"{PREFIX}:answer:*")
        client.delete(key)
        own = Producer(b"answer")
        own.allow(1)
        await replay(await begin(shared.second, own))
        await until(lambda: client.hexists(key, "body"))
        lives_ms = client.pttl(key)
        next(iter(store._held.values())).renewed_s = -math.inf
        await write()
        suspended.allow(1)
        await until(lambda: next(iter(store._held.values())).ended)
        await write()
        found = client.hget(key, "body"), client.pttl(key) > lives_ms - 60_000
    store._write = write
    runs_on.set()
    assert found == (b"answer", True)


# --- Redis fails --------------------------------------------------------------------------------------


@pytest.fixture
def own_redis(redis_server, tmp_path):
    server = RedisProcess(tmp_path / "redis")
    yield server
    server.close()


async def test_without_redis_no_call_with_a_key_is_made(own_redis):
    world = SharedWorld(own_redis.url)
    await world.ready()
    await finish(world.first, "before", b"before")
    running = Producer(b"during")
    buffer = await begin(world.first, running, "during")
    own_redis.kill()
    untouched = Producer(b"never")
    for refused in (
        world.second.find(request("new")),
        world.second.begin(request("new"), untouched),
        world.second.find(request("before")),
    ):
        with pytest.raises(UnavailableError) as error:
            await refused
        assert error.value.code == "idempotency_unavailable"
        assert "retry-after" in {name.lower() for name in error.value.headers}
    assert not world.second._running
    assert await replay(await world.first.find(request("before"))) == b"before"
    running.allow(1)
    assert await replay(buffer) == b"during", "what runs is not touched"
    own_redis.start()
    for name in ("before", "during"):
        await until_accepted(lambda name=name: has(world.second, name))
        assert await replay(await world.second.find(request(name))) == name.encode()
    await world.close()


async def test_an_empty_redis_accepts_claims_once_all_servers_have_repeated_theirs(own_redis):
    world = SharedWorld(own_redis.url)
    await world.ready()
    running = Producer(b"during")
    await begin(world.first, running)
    own_redis.kill()
    own_redis.start()
    repeated = Producer(b"again")

    async def waiting():
        task = asyncio.create_task(world.second.begin(request(), repeated))
        await until(lambda: task.done() or world.second._waiting.used)
        if task.done():
            await task
            raise AssertionError("the call is made twice")
        return task

    again = await until_accepted(waiting)
    running.allow(1)
    buffer, replayed = await again
    assert (await replay(buffer), replayed) == (b"during", True)
    await world.close()
