"""Calls pass through control, relay and pool to a server without vLLM's dialect."""

import asyncio
import time

import numpy as np
import pytest
from control_world import MemoryJournal
from pool_world import CIRCUIT, probe_often
from scripted_server import ScriptedServer
from until import until

from fairserve.engine.wire.client import worker_session
from fairserve.interactions.call import Call
from fairserve.platform.control.messages import Submit
from fairserve.platform.control.service import ControlService
from fairserve.platform.fleet.models import ServedModel
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.platform.serving.completions.openai_endpoint import OpenAIWriter
from fairserve.platform.serving.completions.relay import Relay
from fairserve.platform.serving.completions.requests import CHAT, read_fields
from fairserve.platform.serving.completions.running_call import RunningCall
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.scheduling.registry import SYSTEMS

PROMPT_TOKENS = 64


def completion(number, user, word):
    """Return a request and its call, of a run of its own, with a prompt that no other one shares."""
    name = f"{user}-{number}"
    first = number * 1000 + (500_000 if user == "light" else 0)
    tokens = np.arange(first, first + PROMPT_TOKENS, dtype=np.uint32)
    run = f"app/{name}"
    call = Call(
        f"{run}/c",
        "t",
        "app",
        user,
        run,
        "m",
        PROMPT_TOKENS,
        0,
        5,
        single=True,
        token_ids=tokens,
        pool="m",
    )
    model = ServedModel(("m",), "m", 100, reader=None)
    checked = CheckedCall(Submit(call, call.call_id), name, model, "m")
    messages = [{"role": "user", "content": f"{word} {name}"}]
    return read_fields(CHAT, {"model": "m", "messages": messages, "stream": True}), checked


class Journal(MemoryJournal):
    async def written(self):
        pass


class Written:
    """A reader that keeps the answer."""

    lost, is_full, body = "", False, b""

    def write(self, body):
        self.body += body


class World:
    def __init__(self, session):
        self.journal = Journal()
        self.control = ControlService(SYSTEMS["d2lpm"], self.journal)
        self.control.start()
        self.pool = WorkerPool(
            self.control,
            session,
            lambda *reported: None,
            local_options={"quantum": PROMPT_TOKENS},
            circuit=CIRCUIT,
        )

    async def serve(self, server, concurrency):
        spec = WorkerSpec("w", server.url, "openai", kv_tokens=10_000, concurrency=concurrency)
        self.pool.add(spec)
        await until(lambda: self.pool.serves("w"))

    async def call(self, number, user, word="ok"):
        decisions = DecisionService(None, self.control, models=None)
        request, checked = completion(number, user, word)
        writer = OpenAIWriter(request, checked)
        running = RunningCall(request, checked, writer, time.monotonic())
        written = Written()
        await Relay(running, decisions, self.pool.get, written).carry()
        return written.body


@pytest.fixture
async def world(monkeypatch):
    probe_often(monkeypatch)
    async with worker_session() as session:
        made = World(session)
        yield made
        await made.pool.close()
        await made.control.close()


@pytest.fixture
async def server():
    async with ScriptedServer("openai") as made:
        yield made


async def test_the_local_queue_is_fair_before_an_unfair_server(world, server):
    await world.serve(server, concurrency=1)
    flood = [asyncio.create_task(world.call(number, "flood")) for number in range(12)]
    light = asyncio.create_task(world.call(0, "light"))
    await asyncio.gather(*flood, light)
    order = [body["messages"][0]["content"].split()[1] for body in server.bodies]
    assert sorted(order) == sorted(["light-0", *(f"flood-{n}" for n in range(12))])
    assert order.index("light-0") <= 3, order
    assert server.most_under_way == 1
    rows = world.journal.rows()
    assert {(row["outcome"], row["output_tokens"]) for row in rows} == {("completed", 3)}
    assert len(rows) == 13
    (view,) = world.pool.views()
    assert (view["local_queue"]["waiting"], view["local_queue"]["sent"]) == (0, 0)
    (seen,) = (await world.control.cluster()).workers
    assert (seen.calls, seen.demand_tokens) == (0, 0)


async def test_a_call_is_sent_after_a_requested_pause(world, server):
    await world.serve(server, concurrency=2)
    server.throttled, server.retry_after = 2, "0"
    assert (await world.call(0, "ann")).count(b"data: ") > 3
    assert [row["outcome"] for row in world.journal.rows()] == ["completed"]
    assert len(server.bodies) == 3
    assert world.pool.views()[0]["circuit"]["opened"] == 0
