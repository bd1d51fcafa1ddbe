"""Test the buffer before a client's connection, and the time limit of slow clients."""

import asyncio
import contextlib

import pytest
from until import settle

from fairserve.platform.serving.completions.answer import (
    PIECE_BYTES,
    ClientLimits,
    ConnectionSink,
    SlowClientError,
)


class Connection:
    """Receiver of a sink; it accepts nothing until the test allows it."""

    def __init__(self, buffer_bytes=10, timeout_s=30.0):
        self.sent = []
        self.takes = asyncio.Event()
        self.now_s = 0.0
        limits = ClientLimits(buffer_bytes, timeout_s)
        self.sink = ConnectionSink(self.send, limits, clock=lambda: self.now_s)

    async def send(self, message):
        await self.takes.wait()
        self.sent.append(message)

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


@contextlib.asynccontextmanager
async def running(connection):
    task = asyncio.create_task(connection.sink.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_answer_arrives_completely_and_in_order():
    connection = Connection(buffer_bytes=3 * PIECE_BYTES)
    connection.takes.set()
    parts = [bytes([number]) * (number * 40_000) for number in range(1, 6)]
    async with running(connection) as task:
        await connection.sink.start(200, {"a": "b"})
        for part in parts:
            await connection.sink.write(part)
        connection.sink.finish()
        await task
    assert connection.sent[0]["headers"] == [(b"a", b"b")]
    assert connection.body == b"".join(parts)
    assert [message["more_body"] for message in connection.sent[1:]].count(False) == 1
    assert max(len(message.get("body", b"")) for message in connection.sent) == PIECE_BYTES


async def test_a_writer_waits_only_when_the_buffer_is_full():
    connection = Connection(buffer_bytes=10)
    async with running(connection):
        await connection.sink.start(200, {})
        await connection.sink.write(b"12345")
        await connection.sink.write(b"67890")
        third = asyncio.create_task(connection.sink.write(b"x"))
        await settle()
        assert not third.done()
        connection.takes.set()
        await third
        connection.sink.finish()


async def test_a_connection_that_accepts_nothing_is_dropped():
    connection = Connection(timeout_s=0.01)
    async with running(connection) as task:
        await connection.sink.start(200, {})
        with pytest.raises(SlowClientError, match=r"did not read its answer for 0\.01 s"):
            await task
    assert connection.sink.lost


async def test_waits_of_a_call_are_limited_in_total():
    """Each wait is short, so that no single one shows that the client reads too slowly."""
    connection = Connection(buffer_bytes=1, timeout_s=30.0)
    connection.takes.set()

    async def slow(message):
        connection.sent.append(message)
        connection.now_s += 11.0

    connection.sink._send = slow
    async with running(connection):
        await connection.sink.write(b"a")
        await connection.sink.write(b"b")
        await connection.sink.write(b"c")
        await connection.sink.write(b"d")
        with pytest.raises(SlowClientError):
            await connection.sink.write(b"e")
