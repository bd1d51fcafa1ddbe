"""Streams share the event loop in turns, by bytes, and tenants take them in rotation."""

import asyncio
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from fairserve.engine.wire.answer_shape import AnswerShape
from fairserve.engine.wire.loop_turns import EVENT_BYTES, TURN_BYTES, TURNS_PER_PASS, LoopTurns
from fairserve.engine.wire.worker_stream import HttpWorkerStream

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "yyyy"}}]}\n\n'
END = b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
EVENTS = 1_000


class Passes:
    """Counts the passes of the event loop."""

    def __init__(self):
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._passed)

    def _passed(self):
        self.count += 1
        self._loop.call_soon(self._passed)


def received_stream(turns, tenant, event=EVENT):
    """Return a stream of which everything has arrived already."""
    loop = asyncio.get_running_loop()
    content = aiohttp.StreamReader(BaseProtocol(loop), 1 << 20, loop=loop)
    content.feed_data(event * EVENTS + END)
    response = SimpleNamespace(content=content, close=lambda: None, release=lambda: None)
    shape = AnswerShape("/v1/chat/completions", 1)
    return HttpWorkerStream(response, shape, turns=turns, tenant=tenant)


async def read_all(stream):
    return [chunk async for chunk in stream]


@pytest.mark.parametrize("event", [EVENT, b"data: {}\n\n"])
async def test_what_has_arrived_is_worked_off_in_turns(event):
    """Empty events cost time, too: a turn has a bounded number of them."""
    passes = Passes()
    chunks = await read_all(received_stream(LoopTurns(), "acme", event))
    assert len(chunks) == EVENTS + 1
    counted_bytes = len(event) - len(b"data: \n\n") + EVENT_BYTES
    assert passes.count >= EVENTS * counted_bytes // TURN_BYTES


async def test_a_pass_of_the_loop_has_a_bounded_number_of_turns():
    """The work between two passes does not grow with the number of streams."""
    passes, turns = Passes(), LoopTurns()
    given = []

    async def take():
        await turns.next("acme")
        given.append(passes.count)

    await asyncio.gather(*(take() for _ in range(50)))
    assert len(given) == 50
    assert max(given.count(at) for at in given) == TURNS_PER_PASS


async def test_tenants_take_turns_in_rotation():
    """One stream of another tenant is next, however many streams of one tenant wait."""
    turns, order = LoopTurns(), []

    async def take(tenant):
        await turns.next(tenant)
        order.append(tenant)

    crowd = [asyncio.create_task(take("crowd")) for _ in range(40)]
    await asyncio.gather(take("acme"), *crowd)
    assert order.index("acme") <= 1


async def test_a_cancelled_stream_takes_no_turn():
    turns, given = LoopTurns(), []
    gone = [asyncio.create_task(turns.next("gone")) for _ in range(9)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await turns.next("acme")
    given.append("acme")
    for task in gone:
        with pytest.raises(asyncio.CancelledError):
            await task
    await turns.next("gone")
    assert given == ["acme"]
