"""Connections to workers: kept, closed, and whatever a server sends over them."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from until import settle, turn, until

from fairserve.engine.wire import connections
from fairserve.engine.wire.connections import Origin, WorkerConnections

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LAST_CHUNK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"


class Answer:
    def __init__(self):
        self.status, self.headers, self.body, self.end_text = 0, {}, bytearray(), None
        self.over = asyncio.Event()

    def head(self, status, headers):
        assert not self.status
        self.status, self.headers = status, headers

    def data(self, data):
        assert data
        self.body += data

    def end(self):
        self.finish("end")

    def lost(self, why, *, unreachable):
        self.finish(f"unreachable: {why}" if unreachable else f"lost: {why}")

    def finish(self, text):
        assert self.end_text is None
        self.end_text = text
        self.over.set()


class Server:
    """Answers each request with the next of its answers; None closes the connection."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.connections, self.closed, self.requests = 0, 0, []
        self.backlog_bytes = 0
        """Bytes that the client has not read, and that no buffer of the system takes."""

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for part in self.answers.pop(0):
                    if part is None:
                        writer.close()
                        return
                    if isinstance(part, asyncio.Event):
                        await part.wait()
                        continue
                    writer.write(part)
                    self.backlog_bytes = writer.transport.get_write_buffer_size()
                    await writer.drain()
                    await turn()  # each part in a packet of its own
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed += 1
            writer.close()


@asynccontextmanager
async def serving(*answers):
    server = Server(*answers)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.origin = Origin(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/base/")
    server.pool = WorkerConnections()
    yield server
    server.pool.close()
    listener.close()
    await until(lambda: server.closed == server.connections)
    await settle()


def sent(server):
    answer = Answer()
    request = server.origin.post("/path", {"x-request-id": "a"}, b"{}")
    answer.exchange = server.pool.send(server.origin, request, answer)
    return answer


async def ask(server):
    answer = sent(server)
    async with asyncio.timeout(60):
        await answer.over.wait()
    return answer


async def test_a_connection_is_kept_for_the_next_request():
    async with serving([OK], [OK]) as server:
        for _ in range(2):
            answer = await ask(server)
            assert (answer.status, answer.body, answer.end_text) == (200, b"ok", "end")
        assert server.connections == 1
        assert server.requests[0].startswith(b"POST /base/path HTTP/1.1\r\nhost: 127.0.0.1:")
        assert server.requests[0].endswith(b"x-request-id: a\r\n\r\n{}")


@pytest.mark.parametrize(
    "answers",
    [
        [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"],
        [b"HTTP/1.1 200 OK\r\n\r\no", b"k", None],
        [b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"],
        [OK + b"more"],
    ],
    ids=["closes", "no length", "HTTP/1.0", "more than the answer"],
)
async def test_a_connection_that_cannot_be_kept_is_closed(answers):
    async with serving(answers, [OK]) as server:
        first = await ask(server)
        assert (first.body, first.end_text) in ((b"ok", "end"), (b"", first.end_text))
        assert (await ask(server)).body == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([None], "the connection was closed"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", None], "the connection was closed"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", None], "was closed"),
        ([b"220 mail\r\n\r\n"], "is not HTTP"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxx\r\n"], "is not HTTP"),
        ([b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 8000 + b"\r\n"] * 9], "head of its answer"),
        ([LAST_CHUNK, *[b"x: " + b"y" * 8000 + b"\r\n"] * 60], "trailer of its answer"),
        ([LAST_CHUNK, b"x: ", *[b"y" * 8000] * 60], "trailer of its answer"),
    ],
    ids=[
        "nothing",
        "too short",
        "without its last chunk",
        "no HTTP",
        "no chunk",
        "long head",
        "long trailer",
        "long line of a trailer",
    ],
)
async def test_a_broken_answer_is_lost(answers, why):
    async with serving(answers) as server:
        answer = await ask(server)
        assert answer.end_text.startswith("lost: ")
        assert why in answer.end_text


async def test_an_informational_answer_precedes_the_answer():
    hint = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with serving([hint + OK], [hint, OK]) as server:
        for _ in range(2):
            answer = await ask(server)
            assert (answer.status, answer.body) == (200, b"ok")
            assert "link" not in answer.headers


async def test_an_address_without_a_listener_is_unreachable(monkeypatch):
    async with serving() as server:
        server.origin = Origin("http://127.0.0.1:1")
        assert (await ask(server)).end_text.startswith("unreachable: no connection to 127.0.0.1:1")


async def test_a_closed_exchange_gets_nothing_and_ends_the_connection():
    async with serving([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\no"]) as server:
        answer = sent(server)
        await until(lambda: answer.body)
        answer.exchange.close()
        answer.exchange.close()
        await until(lambda: server.closed)
        assert answer.end_text is None
        unsent = sent(server)
        unsent.exchange.close()
        await settle()
        assert unsent.end_text is None


@pytest.mark.parametrize("rest", [[b"0\r\n\r\n"], [b"1\r\nx\r\n0\r\n\r\n"]], ids=["ends", "more"])
async def test_an_answer_that_is_over_may_still_end(rest):
    """Its connection is kept if nothing but the end follows."""
    event = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"
    over = asyncio.Event()
    async with serving([event, over, *rest], [OK]) as server:
        answer = sent(server)
        await until(lambda: answer.body)
        answer.exchange.expect_end()
        over.set()
        await until(lambda: server.pool._idle or server.closed)
        assert (await ask(server)).body == b"ok"
        assert server.connections == (1 if rest[0] == b"0\r\n\r\n" else 2)
        assert answer.end_text is None


async def test_an_idle_connection_is_closed_before_its_server_does(monkeypatch):
    monkeypatch.setattr(connections, "IDLE_S", 0.01)
    async with serving([OK]) as server:
        await ask(server)
        await until(lambda: server.closed and not server.pool._idle)


async def test_a_server_that_sends_without_being_asked_loses_its_connection():
    async with serving([OK, b"", b"x"], [OK]) as server:
        await ask(server)
        await until(lambda: server.closed)
        assert (await ask(server)).body == b"ok"
        assert server.connections == 2


async def test_a_paused_exchange_reads_nothing():
    parts = [b"x" * 65536] * 1024  # more than the buffers of the system
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % sum(map(len, parts))
    async with serving([head, *parts]) as server:
        answer = sent(server)
        answer.exchange.pause()
        await until(lambda: server.backlog_bytes)  # nothing more fits between the two
        assert len(answer.body) < 4 * 1024 * 1024
        answer.exchange.resume()
        async with asyncio.timeout(60):
            await answer.over.wait()
        assert len(answer.body) == sum(map(len, parts))


def test_the_credentials_of_a_url_are_a_header():
    origin = Origin("https://user:p%40ss@host.example/v")
    request = origin.post("/x", {}, b"")
    assert request.startswith(b"POST /v/x HTTP/1.1\r\nhost: host.example\r\n")
    assert b"authorization: Basic dXNlcjpwQHNz\r\n" in request
    assert b"authorization: Bearer k\r\n" in origin.post("/x", {"authorization": "Bearer k"}, b"")
    assert b"host: [::1]:8000\r\n" in Origin("http://[::1]:8000").post("/", {}, b"")


def test_a_header_is_one_line():
    with pytest.raises(ValueError, match="line break"):
        Origin("http://a").post("/", {"x": "a\r\ny: b"}, b"")
