"""Streams share the event loop in turns, by bytes, and tenants take them in rotation."""

import asyncio
from types import SimpleNamespace

import pytest
from received import Received
from until import settle, until

from fairserve.engine.wire import worker_answer
from fairserve.engine.wire.base import WorkerRequest
from fairserve.engine.wire.loop_turns import EVENT_BYTES, TURN_BYTES, TURNS_PER_PASS, LoopTurns
from fairserve.engine.wire.worker_answer import (
    MAX_BACKLOG_BYTES,
    MAX_TOKEN_BYTES,
    WorkerAnswer,
)

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


class Server:
    """A server whose answers are read."""

    private = ()
    needs_done = True
    counts_samples_apart = False

    def reports_start(self, request):
        return True


def read_all(turns, tenant, event):
    """Receive an answer all of which arrives at once."""
    answer = Received()
    request = WorkerRequest("/v1/chat/completions", {}, "call", "client", tenant=tenant)
    reading = WorkerAnswer(Server(), request, answer, turns, None)
    reading.head(200, {})
    reading.data(event * EVENTS + END)
    reading.end()
    return answer


def followed(**fields):
    """Return a receiver, its answer of which the head has arrived, and what its connection is asked."""
    answer, calls = Received(), []
    request = WorkerRequest("/v1/chat/completions", {}, "call", "client", **fields)
    reading = WorkerAnswer(Server(), request, answer, LoopTurns(), None)
    reading.exchange = SimpleNamespace(
        pause=lambda: calls.append("pause"),
        resume=lambda: calls.append("resume"),
        expect_end=lambda: calls.append("end"),
        close=lambda: calls.append("close"),
    )
    reading.head(200, {})
    return answer, reading, calls


@pytest.mark.parametrize("event", [EVENT, b"data: {}\n\n"])
async def test_what_has_arrived_is_worked_off_in_turns(event):
    """Empty events cost time, too: a turn has a bounded number of them."""
    passes = Passes()
    chunks = [chunk async for chunk in read_all(LoopTurns(), "acme", event)]
    assert len(chunks) == EVENTS + 1
    counted_bytes = len(event) - len(b"data: \n\n") + EVENT_BYTES
    assert passes.count >= EVENTS * counted_bytes // TURN_BYTES - 1


async def test_nothing_is_worked_off_while_the_reader_lags():
    answer = Received()
    request = WorkerRequest("/v1/chat/completions", {}, "call", "client")
    reading = WorkerAnswer(Server(), request, answer, LoopTurns(), None)
    reading.head(200, {})
    reading.pause()
    reading.data(EVENT * EVENTS + END)
    reading.end()
    await settle()
    assert answer._items.empty()
    reading.resume()
    assert len([chunk async for chunk in answer]) == EVENTS + 1


async def test_much_that_waits_for_its_turn_pauses_the_connection():
    answer, reading, calls = followed()
    reading.data(EVENT * (2 * MAX_BACKLOG_BYTES // len(EVENT)) + END)
    assert calls[-1] == "pause"
    async for _ in answer:
        pass
    assert calls[-2:] == ["resume", "end"]


LARGE = EVENT.replace(b"yyyy", b"y" * 2 * MAX_BACKLOG_BYTES)


@pytest.mark.parametrize(
    "parts",
    [
        [b": ping\n\n" * 1_000] * (MAX_BACKLOG_BYTES // 4_000),
        [LARGE[start : start + 9_999] for start in range(0, len(LARGE), 9_999)],
        [EVENT * EVENTS + LARGE],
    ],
    ids=["comments", "a large event in parts", "a large event that waited for its turn"],
)
async def test_a_stream_without_waiting_events_is_read(parts):
    answer, reading, calls = followed()
    for part in [*parts, END]:
        reading.data(part)
        await until(lambda: calls[-1] != "pause")
    events = b"".join(parts).count(b"data: ")
    assert len([chunk async for chunk in answer]) == events + 1


@pytest.mark.parametrize("part", [b": ping\n\n", b'data: {"choices": [], "field": 1}\n\n'])
async def test_a_stream_is_bounded_by_the_tokens_of_its_call(part, monkeypatch):
    """Comments and fields of the worker's own are no output that a call could be charged for."""
    monkeypatch.setattr(worker_answer, "MAX_ANSWER_BYTES", 1_000)
    answer, reading, _ = followed(max_output_tokens=2)
    for _ in range((1_000 + 2 * MAX_TOKEN_BYTES) // len(part)):
        reading.data(part)
    assert answer.failure is None
    reading.data(part)
    assert str(answer.failure) == f"its answer is longer than {1_000 + 2 * MAX_TOKEN_BYTES} bytes"


async def test_without_turns_much_is_worked_off_at_once():
    """A gateway's message may have a megabyte of an answer."""
    answer = read_all(None, "acme", EVENT * 20)
    assert answer.failure is None
    assert len([chunk async for chunk in answer]) == 20 * EVENTS + 1


async def test_a_pass_of_the_loop_has_a_bounded_number_of_turns():
    """The work between two passes does not grow with the number of streams."""
    passes, turns = Passes(), LoopTurns()
    given = []

    async def take():
        await turns.turn("acme")
        given.append(passes.count)

    await asyncio.gather(*(take() for _ in range(50)))
    assert len(given) == 50
    assert max(given.count(at) for at in given) == TURNS_PER_PASS


async def test_tenants_take_turns_in_rotation():
    """One stream of another tenant is next, however many streams of one tenant wait."""
    turns, order = LoopTurns(), []

    async def take(tenant):
        await turns.turn(tenant)
        order.append(tenant)

    crowd = [asyncio.create_task(take("crowd")) for _ in range(40)]
    await asyncio.gather(take("acme"), *crowd)
    assert order.index("acme") <= 1


async def test_a_cancelled_stream_takes_no_turn():
    turns, given = LoopTurns(), []
    gone = [turns.turn("gone") for _ in range(9)]
    for task in gone:
        task.cancel()
    await turns.turn("acme")
    given.append("acme")
    for task in gone:
        with pytest.raises(asyncio.CancelledError):
            await task
    await turns.turn("gone")
    assert given == ["acme"]
