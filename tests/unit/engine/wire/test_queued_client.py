"""Test a worker behind a local queue, with a manual clock and server."""

import asyncio

import numpy as np
import pytest
from until import settle

from fairserve.engine.wire.base import WorkerChunk, WorkerRequest, WorkerUnavailableError
from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.engine.wire.queued_client import MAX_PAUSE_S, QueuedClient
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions


class Clock:
    def __init__(self):
        self.now_s, self.timers = 0.0, []

    def __call__(self):
        return self.now_s

    def call_later(self, delay_s, function):
        self.timers.append((self.now_s + delay_s, function))

    def move(self, to_s):
        self.now_s = to_s
        due = [each for each in self.timers if each[0] <= to_s]
        self.timers = [each for each in self.timers if each[0] > to_s]
        for _, function in due:
            function()


class Server:
    """A client that returns streams; ``answers`` are the answers to the next calls."""

    def __init__(self):
        self.streams, self.answers, self.on_the_way = [], [], []

    async def open(self, request):
        arrived = asyncio.get_running_loop().create_future()
        self.on_the_way.append(arrived)
        await arrived
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.streams.append(Stream(request))
        return self.streams[-1]


class Stream:
    def __init__(self, request):
        self.request, self.chunks, self.closed = request, [], False

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.chunks:
            raise StopAsyncIteration
        return WorkerChunk(self.chunks.pop(0))

    def close(self):
        self.closed = True


def request(name, client="a", first=0, tenant=""):
    tokens = np.arange(first, first + 64, dtype=np.uint32)
    return WorkerRequest(
        "/v1/chat/completions",
        {},
        name,
        client,
        token_ids=tokens,
        max_output_tokens=10,
        tenant=tenant,
    )


def text(count=None, choices=1):
    chunk = {"choices": [{"index": n, "delta": {"content": "t"}} for n in range(choices)]}
    return chunk if count is None else {**chunk, "usage": {"completion_tokens": count}}


class World:
    def __init__(self, concurrency=1):
        self.clock, self.server = Clock(), Server()
        self.scheduler = Dlpm(DlpmOptions(quantum=1000, we=1.0, wq=2.0))
        self.client = QueuedClient(
            self.server,
            LocalQueue(self.scheduler, concurrency, 4096),
            self.clock,
            self.clock.call_later,
        )

    def open(self, *arguments, **more):
        return asyncio.ensure_future(self.client.open(request(*arguments, **more)))

    async def turn(self):
        """Let all tasks run until they wait."""
        await settle()
        while self.server.on_the_way:
            for arrived in self.server.on_the_way:
                if not arrived.done():
                    arrived.set_result(None)
            self.server.on_the_way = []
            await settle()

    @property
    def counts(self):
        return self.client.queue.waiting, self.client.queue.sent


async def test_calls_wait_until_others_end():
    world = World()
    first, second = world.open("first"), world.open("second", "b")
    await world.turn()
    assert (first.done(), second.done(), world.counts) == (True, False, (1, 1))
    first.result().close()
    assert world.server.streams[0].closed
    await world.turn()
    assert second.done()
    assert [chunk async for chunk in second.result()] == []
    assert world.counts == (0, 0)


async def test_a_cancelled_waiting_call_leaves_the_queue():
    world = World()
    first, second, third = (world.open(name) for name in ("first", "second", "third"))
    await world.turn()
    second.cancel()
    await world.turn()
    assert world.counts == (1, 1)
    first.result().close()
    await world.turn()
    assert third.done()
    assert [stream.request.call_id for stream in world.server.streams] == ["first", "third"]


async def test_a_call_cancelled_in_its_turn_frees_the_slot():
    world = World()
    first, second, third = (world.open(name) for name in ("first", "second", "third"))
    await world.turn()
    first.result().close()  # it is the turn of the second call, whose task has not run yet
    second.cancel()
    await world.turn()
    assert third.done()
    assert world.counts == (0, 1)
    assert [stream.request.call_id for stream in world.server.streams] == ["first", "third"]


async def test_tokens_are_charged_on_arrival_and_settled_by_the_final_usage():
    world = World()
    opening = world.open("first")
    await world.turn()
    stream = opening.result()
    paid = world.scheduler.deficit("a")
    world.server.streams[0].chunks = [text(), text(choices=2), {"choices": []}, text(9), text(8)]
    charged = []
    for _ in range(5):
        await anext(stream)
        charged.append((paid - world.scheduler.deficit("a")) / 2)
    assert charged == [1, 3, 3, 9, 9]


@pytest.mark.parametrize("count", [11, 10**15, 2**63, 1e30, -5, "9", 4.0, True, None])
async def test_an_unusable_usage_charges_its_chunk_only(count):
    world = World()
    opening = world.open("first")
    await world.turn()
    paid = world.scheduler.deficit("a")
    world.server.streams[0].chunks = [text(count), *[text()] * 30]
    stream = opening.result()
    charged = [(paid - world.scheduler.deficit("a")) / 2 async for _ in stream]
    assert (charged[0], charged[-1]) == (1, 10), "at most what the call may generate"


async def test_a_requested_pause_is_honoured():
    world = World(concurrency=2)
    world.server.answers = [WorkerUnavailableError("later", pause_s=5.0)]
    first, second = world.open("first"), world.open("second")
    await world.turn()
    assert isinstance(first.exception(), WorkerUnavailableError)
    assert second.done(), "it had been sent before"
    third = world.open("third")
    await world.turn()
    assert (third.done(), world.client.paused_s) == (False, 5.0)
    world.clock.move(4.9)
    await world.turn()
    assert not third.done()
    world.clock.move(5.0)
    await world.turn()
    assert third.done()
    assert world.client.paused_s == 0.0


async def test_a_pause_applies_to_the_tenant_that_caused_it():
    world = World(concurrency=3)
    world.server.answers = [WorkerUnavailableError("later", pause_s=5.0)]
    asked = world.open("asked", tenant="a")
    await world.turn()
    assert asked.exception()
    same, other = world.open("same", tenant="a"), world.open("other", tenant="b")
    await world.turn()
    assert (same.done(), other.done(), world.client.paused_s) == (False, True, 5.0)
    world.clock.move(5.0)
    await world.turn()
    assert same.done()
    assert world.client.paused_s == 0.0


async def test_a_pause_caused_by_two_tenants_applies_to_all():
    world = World(concurrency=3)
    world.server.answers = [
        WorkerUnavailableError("later", pause_s=5.0),
        WorkerUnavailableError("later", pause_s=3.0),
    ]
    for tenant in "ab":
        world.open(f"asked {tenant}", tenant=tenant).add_done_callback(asyncio.Future.exception)
        await world.turn()
    third, first = world.open("third", tenant="c"), world.open("first", tenant="a")
    world.clock.move(2.9)
    await world.turn()
    assert not third.done()
    world.clock.move(3.0)
    await world.turn()
    assert (third.done(), first.done()) == (True, False)
    world.clock.move(5.0)
    await world.turn()
    assert first.done()


async def test_pauses_are_bounded_and_never_shortened():
    world = World(concurrency=3)
    world.server.answers = [
        WorkerUnavailableError("later", pause_s=9999.0),
        WorkerUnavailableError("later", pause_s=1.0),
    ]
    calls = [world.open("first"), world.open("second")]
    await world.turn()
    assert all(call.exception() for call in calls)
    assert world.client.paused_s == MAX_PAUSE_S
    late = world.open("late")
    await world.turn()
    world.clock.move(MAX_PAUSE_S)
    await world.turn()
    assert late.done()


async def test_a_failed_call_frees_its_slot():
    world = World()
    world.server.answers = [WorkerUnavailableError("no connection")]
    first, second = world.open("first"), world.open("second")
    await world.turn()
    assert str(first.exception()) == "no connection"
    assert second.done()
    assert world.client.paused_s == 0.0


async def test_waiting_calls_are_requeued_when_the_worker_is_lost():
    world = World()
    first, second = world.open("first"), world.open("second")
    await world.turn()
    world.client.requeue("the worker was lost")
    await world.turn()
    assert first.done()
    assert not world.server.streams[0].closed
    with pytest.raises(WorkerUnavailableError, match="the worker was lost"):
        second.result()
    assert world.counts == (0, 1), "what was sent goes on"


async def test_a_call_may_be_sent_again():
    world = World(concurrency=2)
    for _ in range(2):
        first = world.open("first")
        await world.turn()
        first.result().close()
    assert world.counts == (0, 0)
