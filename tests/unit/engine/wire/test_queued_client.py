"""Test a worker behind a local queue, with a manual clock and server."""

import asyncio

import numpy as np
import pytest
from received import send
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
    """A client that keeps the calls; ``answers`` are the failures of the next ones."""

    def __init__(self):
        self.sent, self.answers = [], []

    def send(self, request, receiver, transport=None):
        call = Sent(request, receiver)
        self.sent.append(call)
        if self.answers:
            asyncio.get_running_loop().call_soon(receiver.failed, self.answers.pop(0))
        return call


class Sent:
    may_have_begun = True

    def __init__(self, request, receiver):
        self.request, self.receiver, self.closed = request, receiver, False

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

    def send(self, *arguments, **more):
        return send(self.client, request(*arguments, **more))

    @property
    def names(self):
        """The calls that the server got."""
        return [call.request.call_id for call in self.server.sent]

    @property
    def counts(self):
        return self.client.queue.waiting, self.client.queue.sent


def test_calls_wait_until_others_end():
    world = World()
    first, second = world.send("first"), world.send("second", "b")
    assert (world.names, world.counts) == (["first"], (1, 1))
    first.close()
    assert world.server.sent[0].closed
    assert world.names == ["first", "second"]
    world.server.sent[1].receiver.ended()
    assert second.done
    assert world.counts == (0, 0)


def test_a_closed_waiting_call_leaves_the_queue():
    world = World()
    first, second, _ = (world.send(name) for name in ("first", "second", "third"))
    second.close()
    assert world.counts == (1, 1)
    first.close()
    assert world.names == ["first", "third"]
    first.close()
    second.close()
    assert world.counts == (0, 1)


def test_tokens_are_charged_on_arrival_and_settled_by_the_final_usage():
    world = World()
    world.send("first")
    paid = world.scheduler.deficit("a")
    charged = []
    for chunk in (text(), text(choices=2), {"choices": []}, text(9), text(8)):
        world.server.sent[0].receiver.received([WorkerChunk(chunk)])
        charged.append((paid - world.scheduler.deficit("a")) / 2)
    assert charged == [1, 3, 3, 9, 9]


@pytest.mark.parametrize("count", [11, 10**15, 2**63, 1e30, -5, "9", 4.0, True, None])
def test_an_unusable_usage_charges_its_chunk_only(count):
    world = World()
    world.send("first")
    paid = world.scheduler.deficit("a")
    charged = []
    for chunk in (text(count), *[text()] * 30):
        world.server.sent[0].receiver.received([WorkerChunk(chunk)])
        charged.append((paid - world.scheduler.deficit("a")) / 2)
    assert (charged[0], charged[-1]) == (1, 10), "at most what the call may generate"


async def test_a_requested_pause_is_honoured():
    world = World(concurrency=2)
    world.server.answers = [WorkerUnavailableError("later", pause_s=5.0)]
    first, _ = world.send("first"), world.send("second")
    await settle()
    assert isinstance(first.failure, WorkerUnavailableError)
    assert world.names == ["first", "second"], "it had been sent before"
    world.send("third")
    assert (world.names, world.client.paused_s) == (["first", "second"], 5.0)
    world.clock.move(4.9)
    assert world.names == ["first", "second"]
    world.clock.move(5.0)
    assert world.names == ["first", "second", "third"]
    assert world.client.paused_s == 0.0


async def test_a_pause_applies_to_the_tenant_that_caused_it():
    world = World(concurrency=3)
    world.server.answers = [WorkerUnavailableError("later", pause_s=5.0)]
    asked = world.send("asked", tenant="a")
    await settle()
    assert asked.failure
    world.send("same", tenant="a")
    world.send("other", tenant="b")
    assert (world.names, world.client.paused_s) == (["asked", "other"], 5.0)
    world.clock.move(5.0)
    assert world.names == ["asked", "other", "same"]
    assert world.client.paused_s == 0.0


async def test_a_pause_caused_by_two_tenants_applies_to_all():
    world = World(concurrency=3)
    world.server.answers = [
        WorkerUnavailableError("later", pause_s=5.0),
        WorkerUnavailableError("later", pause_s=3.0),
    ]
    for tenant in "ab":
        world.send(f"asked {tenant}", tenant=tenant)
        await settle()
    asked = ["asked a", "asked b"]
    world.send("third", tenant="c")
    world.send("first", tenant="a")
    world.clock.move(2.9)
    assert world.names == asked
    world.clock.move(3.0)
    assert world.names == [*asked, "third"]
    world.clock.move(5.0)
    assert world.names == [*asked, "third", "first"]


async def test_pauses_are_bounded_and_never_shortened():
    world = World(concurrency=3)
    world.server.answers = [
        WorkerUnavailableError("later", pause_s=9999.0),
        WorkerUnavailableError("later", pause_s=1.0),
    ]
    calls = [world.send("first"), world.send("second")]
    await settle()
    assert all(call.failure for call in calls)
    assert world.client.paused_s == MAX_PAUSE_S
    world.send("late")
    world.clock.move(MAX_PAUSE_S)
    assert world.names[-1] == "late"


async def test_a_failed_call_frees_its_slot():
    world = World()
    world.server.answers = [WorkerUnavailableError("no connection")]
    first, _ = world.send("first"), world.send("second")
    await settle()
    assert str(first.failure) == "no connection"
    assert world.names == ["first", "second"]
    assert world.client.paused_s == 0.0


def test_waiting_calls_are_requeued_when_the_worker_is_lost():
    world = World()
    first, second = world.send("first"), world.send("second")
    world.client.requeue("the worker was lost")
    assert not first.done
    assert not world.server.sent[0].closed
    assert str(second.failure) == "the worker was lost"
    assert world.counts == (0, 1), "what was sent continues"


def test_a_call_may_be_sent_again():
    world = World(concurrency=2)
    for _ in range(2):
        world.send("first").close()
    assert world.counts == (0, 0)
