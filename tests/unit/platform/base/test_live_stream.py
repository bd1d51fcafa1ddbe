"""Streams are checked at intervals while they last, whether they are busy or idle."""

import asyncio
from itertools import count

import pytest
from until import settle, turn

from fairserve.platform.base.errors import AuthenticationError, FairServeError
from fairserve.platform.base.live_stream import while_allowed


class Source:
    """A stream that never ends by itself; records whether it was closed."""

    def __init__(self, *, silent):
        self.silent = silent
        self.closed = False

    async def pieces(self):
        try:
            for number in count():
                yield b"%d" % number
                await (asyncio.Event().wait() if self.silent else turn())
        finally:
            self.closed = True


class Checks:
    """Allows a fixed number of checks."""

    def __init__(self, allowed):
        self.allowed = allowed

    async def __call__(self):
        self.allowed -= 1
        if self.allowed < 0:
            raise AuthenticationError("over")


@pytest.mark.parametrize("silent", [True, False])
async def test_stream_ends_when_the_check_fails(silent):
    source, checks = Source(silent=silent), Checks(3)
    found = [
        piece
        async for piece in while_allowed(
            source.pieces(), checks, lambda error: error.message.encode(), 0.001
        )
    ]
    assert found[0] == b"0"
    assert found[-1] == b"over"
    assert checks.allowed == -1
    assert source.closed


async def test_a_finite_stream_is_passed_on_completely():
    async def pieces():
        yield b"a"
        yield b"b"

    found = [p async for p in while_allowed(pieces(), Checks(0), lambda _: b"", 3600.0)]
    assert found == [b"a", b"b"]


async def test_errors_of_the_stream_are_passed_on():
    async def pieces():
        yield b"a"
        raise FairServeError("broken")

    with pytest.raises(FairServeError, match="broken"):
        [p async for p in while_allowed(pieces(), Checks(0), lambda _: b"", 3600.0)]


async def test_a_reader_that_disconnects_closes_the_stream():
    source = Source(silent=True)
    stream = while_allowed(source.pieces(), Checks(10**6), lambda _: b"", 0.001)
    assert await anext(stream) == b"0"
    reading = asyncio.create_task(anext(stream))
    await settle()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.aclose()
    assert source.closed
