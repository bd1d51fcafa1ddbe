"""The clients of the gateway benchmark and its stub worker, each a real process."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fairserve.benchmarks.bench.gateway.calls import HOLD, Bodies, CallShape
from fairserve.benchmarks.bench.gateway.gateways import Direct
from fairserve.benchmarks.bench.gateway.load import (
    GatewayLoad,
    LoadClients,
    LoadOutcome,
    _steady_rps,
)
from fairserve.benchmarks.bench.gateway.measurement import MeasurementError, Plan, running_bench

SHAPES = [CallShape(kind, tokens) for kind in ("whole", "stream") for tokens in (1, 20)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = Path(tmp_path_factory.mktemp("bench"))
    with running_bench(Plan(seconds=0.05, step_ms=1), folder, ()) as bench:
        yield bench


async def answered(answer, shape=SHAPES[0], **load):
    """Return the outcome of one call to a server that answers with these bytes."""

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split()[0])
        await reader.readexactly(size)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wanted = {"seconds": 0, "rate": 1000, "calls": 1, **load}
        return await LoadClients(GatewayLoad(url, "k", shape.kind, shape.tokens, 1, **wanted)).run()


def http(body, status="200 OK"):
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


# --- both together ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_call_is_answered_with_its_tokens(bench, shape):
    closed = bench.load(bench.direct, shape, concurrency=3, calls=12)
    opened = bench.load(bench.direct, shape, rate=200, calls=10, seconds=0)
    assert closed.calls >= 12
    assert opened.calls == 10
    for outcome in (closed, opened):
        assert outcome.failed == 0
        assert outcome.rps > 0
        assert len(outcome.total_ms) == len(outcome.first_ms) == outcome.calls
        assert outcome.total_ms == sorted(outcome.total_ms)
        assert outcome.total_ms[0] > (shape.tokens - 1) / 2, "a token takes a step of about 1 ms"
        assert outcome.first_ms[0] <= outcome.total_ms[0]


def test_a_held_call_pauses_after_its_first_token(bench):
    held = bench.load(bench.direct, CallShape("stream", 2), rate=100, calls=3, hold_s=0.2)
    assert held.total_ms[0] >= 200
    assert held.first_ms[0] < held.total_ms[0] - 150


def test_failed_calls_end_the_measurement(bench):
    gateway = Direct("http://127.0.0.1:1")
    with pytest.raises(MeasurementError, match=r"direct, whole_1: 5 of 5 calls failed: .*refused"):
        bench.load(gateway, SHAPES[0], rate=1000, calls=5, seconds=0)


# --- what the clients check ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "shape", "error"),
    [
        (http('{"error": "full"}', "503 -"), CallShape("whole", 1), '503 {"error": "full"}'),
        (http('{"content": " token token"}'), CallShape("whole", 3), "2 tokens instead of 3"),
        (
            http('data: {"content": " token"}\n\n'),
            CallShape("stream", 1),
            "does not end with [DONE]",
        ),
        (b"", CallShape("whole", 1), "the connection was lost"),
        (b"SSH-2.0-OpenSSH\r\n", CallShape("whole", 1), "not HTTP"),
    ],
)
async def test_an_answer_that_is_not_as_expected_is_a_failed_call(answer, shape, error):
    outcome = await answered(answer, shape)
    assert (outcome.calls, outcome.failed) == (0, 1)
    assert error in outcome.errors[0]


async def test_a_right_answer_is_none():
    outcome = await answered(http('{"content": " tokena tokenb"}'), CallShape("whole", 2))
    assert (outcome.calls, outcome.failed, outcome.errors) == (1, 0, [])
    assert LoadOutcome(**json.loads(json.dumps(asdict(outcome)))) == outcome


def test_tokens_that_two_parts_of_an_answer_share_count_once():
    from fairserve.benchmarks.bench.gateway.load import LoadConnection

    text = b'data: {"content":" tokena"}\n\ndata: {"content":" tokenb"}\n\n' * 3
    for size in range(1, len(text)):
        connection = LoadConnection()
        for begin in range(0, len(text), size):
            connection.on_body(text[begin : begin + size])
        assert connection.tokens == 6, size


# --- arithmetic ---------------------------------------------------------------------------------


def test_the_rate_is_that_between_the_first_and_the_last_wave():
    # Two clients: a slow first wave at 5 s, then a call every second, and a last one that is late.
    assert _steady_rps([4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 30.0], 2) == pytest.approx(1.0)
    assert _steady_rps([1.0], 1) == 0.0


def test_no_two_prompts_are_equal_and_users_take_turns():
    bodies = Bodies(CallShape("stream", 7), first=5)
    found = [json.loads(bodies.next()) for _ in range(40)]
    assert len({body["messages"][1]["content"] for body in found}) == 40
    assert len({body["user"] for body in found}) == 16
    assert all(body["stream"] and body["max_tokens"] == 7 for body in found)
    text = found[0]["messages"][0]["content"] + found[0]["messages"][1]["content"]
    assert 190 <= len(text.split()) <= 220
    held = json.loads(Bodies(CallShape("stream", 2), hold_s=1.5).next())
    assert held["messages"][1]["content"].startswith(f"{HOLD} 1.5 ")
