"""The time limits of a connection, tested with a manual clock, close only late clients."""

import asyncio
import heapq

import pytest
import uvicorn
from until import settle
from uvicorn.server import ServerState

from fairserve.platform.server.http.connections import Connections
from fairserve.platform.server.http.protocol import (
    MIN_BODY_BYTES_PER_S,
    LimitedProtocol,
    RequestLimits,
)

HEAD_S, BODY_S, IDLE_S = 10.0, 30.0, 75
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class ClockedLoop:
    """The running loop with a manual clock."""

    def __init__(self):
        self.now_s = 1000.0
        self._timers = []

    def time(self):
        return self.now_s

    def call_later(self, delay_s, call):
        timer = _Timer(self.now_s + delay_s, call)
        heapq.heappush(self._timers, timer)
        return timer

    def create_task(self, work):
        return asyncio.get_running_loop().create_task(work)

    def advance(self, seconds):
        """Advance the clock, and run all timers that are due."""
        end_s = self.now_s + seconds
        while self._timers and self._timers[0].due_s <= end_s:
            timer = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, timer.due_s)
            if not timer.cancelled:
                timer.call()
        self.now_s = end_s


class _Timer:
    def __init__(self, due_s, call):
        self.due_s, self.call, self.cancelled = due_s, call, False

    def cancel(self):
        self.cancelled = True

    def __lt__(self, other):
        return self.due_s < other.due_s


class Wire(asyncio.Transport):
    """Records the bytes that the protocol writes, and its close."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closed = self.reading_paused = False

    def write(self, data):
        self.written += data

    def write_eof(self):
        pass

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        self.reading_paused = True

    def resume_reading(self):
        self.reading_paused = False

    def get_extra_info(self, name, default=None):
        return ("192.0.2.1", 1) if name == "peername" else default


class Client:
    """A connection to an application that answers 200 after ``answer`` is set and the body arrived."""

    def __init__(self):
        self.loop, self.wire = ClockedLoop(), Wire()
        self.answer, self.read = asyncio.Event(), asyncio.Event()
        self.answer.set()
        self.read.set()
        self.connections = Connections(10, 10)
        self.protocol = LimitedProtocol(
            connections=self.connections,
            limits=RequestLimits(HEAD_S, BODY_S, 1 << 20),
            config=uvicorn.Config(
                self._app,
                interface="asgi3",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=IDLE_S,
            ),
            server_state=ServerState(),
            app_state={},
            _loop=self.loop,
        )
        self.protocol.connection_made(self.wire)

    async def _app(self, scope, receive, send):
        await self.read.wait()
        while (await receive()).get("more_body"):
            pass
        await self.answer.wait()
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def send(self, data):
        """Send, and run the application as far as possible."""
        self.protocol.data_received(data)
        await settle()

    @property
    def statuses(self):
        return [int(part[:3]) for part in self.wire.written.split(b"HTTP/1.1 ")[1:]]

    def disconnect(self):
        self.protocol.connection_lost(None)


@pytest.fixture
async def client():
    client = Client()
    yield client
    client.disconnect()
    assert client.connections.open == 0
    await settle()


async def test_a_body_that_keeps_arriving_is_not_late(client):
    """Each 64 KiB extends the time limit by a second, so that a slow connection is not closed."""
    parts = 40
    await client.send(POST % (parts * MIN_BODY_BYTES_PER_S))
    for _ in range(parts):
        client.loop.advance(1.5)
        await client.send(b" " * MIN_BODY_BYTES_PER_S)
    assert client.loop.now_s - 1000 > BODY_S
    assert client.statuses == [200]
    assert not client.wire.closed


async def test_a_trickling_body_is_late(client):
    await client.send(POST % 100)
    for _ in range(29):
        client.loop.advance(1)
        await client.send(b" ")
    assert not client.wire.closed
    client.loop.advance(2)
    assert client.statuses == [408]
    assert client.wire.closed


async def test_a_trickling_head_is_late(client):
    for byte in GET[:9]:
        client.loop.advance(1)
        await client.send(bytes([byte]))
    assert not client.wire.closed
    client.loop.advance(1)
    assert client.statuses == [408]


async def test_a_client_is_not_late_while_the_server_does_not_read(client):
    client.read.clear()
    await client.send(POST % 200_000 + b" " * 100_000)
    assert client.wire.reading_paused
    client.loop.advance(10 * BODY_S)
    assert not client.wire.closed
    client.read.set()
    await client.send(b" " * 100_000)
    assert client.statuses == [200]


async def test_an_answer_may_take_any_time(client):
    client.answer.clear()
    await client.send(GET)
    client.loop.advance(86_400)
    assert not client.wire.closed
    client.answer.set()
    await client.send(b"")
    assert client.statuses == [200]


async def test_an_idle_connection_is_closed_after_its_time_limit(client):
    await client.send(GET)
    client.loop.advance(IDLE_S - 1)
    await client.send(GET)
    client.loop.advance(IDLE_S - 1)
    assert client.statuses == [200, 200]
    assert not client.wire.closed
    client.loop.advance(1)
    assert client.wire.closed


async def test_empty_lines_do_not_keep_an_idle_connection_open(client):
    await client.send(GET)
    for _ in range(9):
        client.loop.advance(1)
        await client.send(b"\r\n")
    client.loop.advance(HEAD_S)
    assert client.wire.closed


async def test_too_many_pipelined_requests_close_the_connection(client):
    client.answer.clear()
    await client.send(GET * 40)
    assert client.wire.closed
