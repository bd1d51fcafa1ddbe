"""One connection: its time limits, tested with a manual clock, and the small print of HTTP/1."""

import asyncio
import gc
import heapq
import weakref

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
        self.bodies = []
        self.streams = False
        """True if the answer has no length."""
        self.answer, self.read = asyncio.Event(), asyncio.Event()
        self.answer.set()
        self.read.set()
        self.connections = Connections(10, 10)
        self.protocol = LimitedProtocol(
            connections=self.connections,
            limits=RequestLimits(1 << 20, HEAD_S, BODY_S),
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
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        await self.answer.wait()
        headers = [] if self.streams else [(b"content-length", b"6")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

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


async def test_an_answered_request_leaves_no_garbage(client):
    gc.disable()
    try:
        await client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        first = weakref.ref(client.protocol.cycle)
        await client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.statuses == [200, 200]
        assert first() is None
    finally:
        gc.enable()


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


UPGRADES = {
    "Java's client": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEA\r\n",
    "websocket": b"Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\n",
    "TLS": b"Upgrade: TLS/1.2, HTTP/1.1\r\nConnection: Upgrade\r\n",
    "without a Connection header": b"Upgrade: h2c\r\n",
    "two headers": b"Connection: Upgrade\r\nConnection: keep-alive\r\nUPGRADE: h2c\r\n",
}
BODIES = {
    "length": b"Content-Length: 5\r\n\r\nhello",
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
@pytest.mark.parametrize("framing", BODIES)
@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_an_upgrade_is_ignored_and_the_body_is_read(client, upgrade, framing, piece_bytes):
    """RFC 9110, 7.8: a server may ignore an upgrade; the request is then one of HTTP/1.1."""
    request = b"POST / HTTP/1.1\r\nHost: x\r\n" + UPGRADES[upgrade] + BODIES[framing]
    data = request + GET + request
    for start in range(0, len(data), piece_bytes):
        await client.send(data[start : start + piece_bytes])
    assert client.bodies == [b"hello", b"", b"hello"]
    assert client.statuses == [200] * 3
    assert not client.wire.closed


async def test_the_length_of_an_upgraded_body_is_still_checked(client):
    request = b"POST / HTTP/1.1\r\nHost: x\r\n" + UPGRADES["Java's client"]
    await client.send(request + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert client.statuses == [400]
    assert client.bodies == []


async def test_a_tunnel_is_rejected(client):
    await client.send(b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n" + GET)
    assert client.statuses == [400]
    assert client.bodies == []


BROKEN_CHUNKS = {
    "size that is no number": b"zz\r\nhello\r\n0\r\n\r\n",
    "size beyond 64 bits": b"fffffffffffffffff\r\n",
    "negative size": b"-5\r\nhello\r\n0\r\n\r\n",
    "data longer than its size": b"5\r\nhello0\r\n\r\n",
    "bare line feeds": b"5\nhello\n0\n\n",
    "second chunk": b"5\r\nhello\r\nzz\r\n",
    "end": b"5\r\nhello\r\n0\r\nx\r\n\r\n",
}
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("chunks", BROKEN_CHUNKS)
async def test_a_malformed_chunked_body_is_answered(client, chunks, whole):
    if whole:
        await client.send(CHUNKED + BROKEN_CHUNKS[chunks])
    else:
        await client.send(CHUNKED)
        await client.send(BROKEN_CHUNKS[chunks])
    assert client.statuses == [400]
    assert b'"malformed_request"' in client.wire.written
    assert client.bodies == []


async def test_a_malformed_body_does_not_overtake_the_answer_before_it(client):
    client.answer.clear()
    await client.send(GET + CHUNKED + b"zz\r\n")
    client.answer.set()
    await settle()
    assert client.statuses in ([], [200])


@pytest.mark.parametrize("keep_alive", [b"", b"Connection: keep-alive\r\n"])
async def test_an_answer_to_http_1_0_is_not_chunked(client, keep_alive):
    client.streams = True
    await client.send(
        b"POST / HTTP/1.0\r\nExpect: 100-continue\r\n" + keep_alive + BODIES["length"]
    )
    head, _, body = client.wire.written.partition(b"\r\n\r\n")
    assert body == b"onetwo"
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert b" 100 " not in client.wire.written
    assert client.wire.closed


async def test_an_answer_of_known_length_to_http_1_0_keeps_it(client):
    await client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert client.wire.written.endswith(b"\r\n\r\nonetwo")
    assert b"content-length: 6" in client.wire.written
