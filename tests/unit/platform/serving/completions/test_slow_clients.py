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
        connection.sink.start(200, {"a": "b"})
        for part in parts:
            connection.sink.write(part)
        connection.sink.finish()
        await task
    assert connection.sent[0]["headers"] == [(b"a", b"b")]
    assert connection.body == b"".join(parts)
    assert [message["more_body"] for message in connection.sent[1:]].count(False) == 1
    assert max(len(message.get("body", b"")) for message in connection.sent) == PIECE_BYTES


async def test_a_sink_is_full_until_the_client_has_caught_up():
    connection = Connection(buffer_bytes=10)
    space = asyncio.Event()
    connection.sink.on_space = space.set
    async with running(connection) as task:
        connection.sink.start(200, {})
        connection.sink.write(b"12345")
        assert not connection.sink.is_full
        connection.sink.write(b"67890")
        assert connection.sink.is_full
        await settle()
        assert not space.is_set()
        connection.takes.set()
        await space.wait()
        assert not connection.sink.is_full
        connection.sink.finish()
        await task
    assert connection.body == b"1234567890"


async def test_what_a_client_takes_at_once_is_not_kept():
    connection = Connection()
    connection.takes.set()
    taken, takes = [], True

    def send_now(body):
        if takes:
            taken.append(body)
        return takes

    connection.sink._send_now = send_now
    async with running(connection) as task:
        connection.sink.start(200, {})
        connection.sink.write(b"a")  # the head goes first
        await settle()
        connection.sink.write(b"b")
        takes = False
        connection.sink.write(b"c")
        takes = True
        connection.sink.write(b"d")  # behind what waits
        connection.sink.finish()
        await task
    assert (taken, connection.body) == ([b"b"], b"acd")


async def test_a_connection_that_accepts_nothing_is_dropped():
    connection = Connection(timeout_s=0.01)
    async with running(connection) as task:
        connection.sink.start(200, {})
        with pytest.raises(SlowClientError, match=r"did not read its answer for 0\.01 s"):
            await task
    assert connection.sink.lost


async def test_lags_of_a_client_are_limited_in_total():
    """Each lag is short, so that no single one shows that the client reads too slowly."""
    connection = Connection(buffer_bytes=1, timeout_s=30.0)
    connection.takes.set()

    async def slow(message):
        connection.sent.append(message)
        connection.now_s += 11.0

    connection.sink._send = slow
    async with running(connection) as task:
        for _ in range(3):
            assert not task.done()
            connection.sink.write(b"a")
            await settle()
        with pytest.raises(SlowClientError):
            await task


async def test_a_client_that_takes_nothing_of_a_full_buffer_is_dropped():
    connection = Connection(buffer_bytes=1, timeout_s=0.01)
    async with running(connection) as task:
        connection.sink.write(b"a")
        with pytest.raises(SlowClientError):
            await task
