"""A compressed body counts with what it becomes and with its window, and only while it arrives."""

import pytest

from fairserve.platform.base.errors import BodyTooLargeError
from fairserve.platform.server.http.decoding import Decoding, zstd
from fairserve.platform.server.http.request_body import RequestBody
from fairserve.platform.serving.bodies import BodyMemory, BodyReservation

MAX_BYTES = 1 << 20


class Request:
    """A request whose parts arrive one by one."""

    def __init__(self, *parts, held_bytes=None):
        self._parts = [
            {"type": "http.request", "body": part, "more_body": number < len(parts)}
            for number, part in enumerate(parts, 1)
        ]
        self.memory = BodyMemory(1 << 30, 1.0, MAX_BYTES)
        reservation = BodyReservation(self.memory, "acme")
        self.body = RequestBody(
            self._receive,
            MAX_BYTES,
            reservation,
            decoding=Decoding("zstd"),
            held_bytes=held_bytes,
        )

    async def _receive(self):
        return self._parts.pop(0) if self._parts else {"type": "http.disconnect"}

    async def read(self):
        """Return the body and the most memory that it had."""
        body, most_bytes, more = b"", 0, True
        while more:
            message = await self.body.receive()
            body += message["body"]
            most_bytes = max(most_bytes, self.memory.used_bytes)
            more = message["more_body"]
        return body, most_bytes


async def test_the_window_counts_until_the_body_has_arrived():
    data = zstd.compress(b"x" * 300_000)
    request = Request(data[:10], data[10:], b"")
    body, most_bytes = await request.read()
    assert body == b"x" * 300_000
    assert most_bytes == 2 * 300_000
    assert request.memory.used_bytes == 300_000
    assert await request.body.receive() == {"type": "http.disconnect"}


async def test_an_upload_holds_a_piece_and_the_window():
    request = Request(zstd.compress(b"x" * 900_000), held_bytes=1000)
    body, most_bytes = await request.read()
    assert len(body) == 900_000
    assert most_bytes == 1000 + 900_000
    assert request.memory.used_bytes == 1000


async def test_no_more_than_the_limit_is_decompressed():
    request = Request(zstd.compress(b"x" * 100 * MAX_BYTES))
    with pytest.raises(BodyTooLargeError, match="the decompressed body"):
        await request.read()
    assert request.memory.used_bytes <= 2 * MAX_BYTES
