"""Test the buffer before a client's connection, and the time limit of slow clients."""

import asyncio

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
        self.failed = asyncio.Event()
        self.sink = ConnectionSink(
            self.send, limits, clock=lambda: self.now_s, on_failure=self.failed.set
        )

    async def send(self, message):
        await self.takes.wait()
        self.sent.append(message)

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_an_answer_arrives_completely_and_in_order():
    connection = Connection(buffer_bytes=3 * PIECE_BYTES)
    connection.takes.set()
    parts = [bytes([number]) * (number * 40_000) for number in range(1, 6)]
    connection.sink.start(200, {"a": "b"})
    for part in parts:
        connection.sink.write(part)
    await connection.sink.finish()
    assert connection.sent[0]["headers"] == [(b"a", b"b")]
    assert connection.body == b"".join(parts)
    assert [message["more_body"] for message in connection.sent[1:]].count(False) == 1
    assert max(len(message.get("body", b"")) for message in connection.sent) == PIECE_BYTES


async def test_a_whole_answer_is_sent_in_one_part():
    connection = Connection()
    connection.takes.set()
    connection.sink.whole(200, {}, b"12345")
    await connection.sink.finish()
    assert [message.get("more_body") for message in connection.sent] == [None, False]
    assert connection.body == b"12345"


class CountedBytes(bytes):
    """Bytes that count those that slices copy of them, and of their slices."""

    copied = 0

    def __getitem__(self, key):
        part = CountedBytes(super().__getitem__(key))
        CountedBytes.copied += len(part)
        return part


async def test_the_rest_of_a_large_answer_is_not_copied_for_each_piece():
    connection = Connection()
    connection.takes.set()
    body = CountedBytes(bytes(range(256)) * (PIECE_BYTES // 8))
    connection.sink.whole(200, {}, body)
    await connection.sink.finish()
    assert connection.body == body
    assert max(len(message.get("body", b"")) for message in connection.sent) == PIECE_BYTES
    assert CountedBytes.copied <= len(body)


async def test_a_sink_is_full_until_the_client_has_caught_up():
    connection = Connection(buffer_bytes=10)
    space = asyncio.Event()
    connection.sink.on_space = space.set
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
    await connection.sink.finish()
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
    connection.sink.start(200, {})
    connection.sink.write(b"a")  # the head goes first
    await settle()
    connection.sink.write(b"b")
    takes = False
    connection.sink.write(b"c")
    takes = True
    connection.sink.write(b"d")  # behind what waits
    await connection.sink.finish()
    assert (taken, connection.body) == ([b"b"], b"acd")


async def test_nothing_overtakes_a_part_that_is_being_sent():
    connection = Connection()
    connection.sink._send_now = pytest.fail
    connection.sink.start(200, {})
    connection.sink.write(b"a")
    await settle()  # the buffer is empty, and its part waits for the connection
    connection.sink.write(b"b")
    connection.takes.set()
    await connection.sink.finish()
    assert connection.body == b"ab"


async def test_a_connection_that_accepts_nothing_is_dropped():
    connection = Connection(timeout_s=0.01)
    connection.sink.start(200, {})
    connection.sink.write(b"a")
    await connection.failed.wait()
    assert isinstance(connection.sink.failure, SlowClientError)
    assert connection.sink.lost == "the client did not read its answer for 0.01 s"
    connection.sink._send_now = pytest.fail  # what is written next would follow a gap
    connection.sink.write(b"b")
    with pytest.raises(SlowClientError):
        await connection.sink.finish()


async def test_lags_of_a_client_are_limited_in_total():
    """Each lag is short, so that no single one shows that the client reads too slowly."""
    connection = Connection(buffer_bytes=1, timeout_s=30.0)
    connection.takes.set()

    async def slow(message):
        connection.sent.append(message)
        connection.now_s += 11.0

    connection.sink._send = slow
    for _ in range(3):
        assert connection.sink.failure is None
        connection.sink.write(b"a")
        await settle()
    assert isinstance(connection.sink.failure, SlowClientError)


async def test_a_client_that_takes_nothing_of_a_full_buffer_is_dropped():
    connection = Connection(buffer_bytes=1, timeout_s=0.01)
    connection.sink.write(b"a")
    await connection.failed.wait()
    assert connection.sink.lost
