"""The limits of the real Envoy's public side, and the errors that it answers by itself."""

import asyncio
import io
import socket
from dataclasses import replace

import aiohttp
import orjson
import pytest
from envoy_plane import WHOLE, answering, envoy_plane, streaming
from google.protobuf.duration_pb2 import Duration
from http2_frames import SETTINGS, http2_client, request
from until import until

from fairserve.platform.base.errors import (
    BodyTooLargeError,
    HeadTooLargeError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
)
from fairserve.platform.envoy.limits import Limits
from fairserve.platform.envoy.listener import MAX_DECISION_S
from fairserve.platform.envoy.protocol import messages_pb2 as pb
from fairserve.platform.envoy.settings import EnvoySettings

PATH = "/v1/chat/completions"
BODY_BYTES = 64 * 1024
LIMITS = Limits(max_body_bytes=BODY_BYTES, file_max_bytes=BODY_BYTES)


def plane_with(settings=None, **limits):
    return envoy_plane(replace(LIMITS, **limits), settings)


async def exchange(plane, *parts):
    """Send parts on one connection; return the status, the headers and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.process.port)
    try:
        for part in parts:
            writer.write(part)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().rstrip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, body
    finally:
        writer.close()


def head_of(path=PATH, length=0, *lines):
    size = [] if length is None else [f"content-length: {length}"]
    first = [f"POST {path} HTTP/1.1", "host: a", *size, *lines]
    return "\r\n".join(first).encode() + b"\r\n\r\n"


def check(answer, error):
    """Check an answer against the error of the embedded plane."""
    status, headers, body = answer
    assert status == error.status
    assert headers["content-type"] == "application/json"
    found = orjson.loads(body)["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert (found["type"], found["code"]) == (error.type, error.code)
    assert found["message"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_far_over_the_limit_is_rejected(chunked):
    """The limit bounds memory; the decision service rejects a body that exceeds it by less."""

    async def parts(size):
        for _ in range(size // 1024):
            yield b"x" * 1024

    async with plane_with() as plane, aiohttp.ClientSession() as session:
        worker = await plane.worker(answering(body=WHOLE))
        for size, status in ((BODY_BYTES, 200), (BODY_BYTES * 8, 413)):
            data = parts(size) if chunked else io.BytesIO(b"x" * size)
            async with session.post(plane.url + PATH, data=data) as response:
                assert response.status == status, size
                if status == 413:
                    answer = (413, response.headers, await response.read())
                    check(answer, BodyTooLargeError(""))
                    assert str(BODY_BYTES) in answer[2].decode()
        assert [len(each.body) for each in worker.received] == [BODY_BYTES]
        assert not plane.api.received


async def test_bodies_of_other_requests_are_the_server_s_to_limit():
    async with plane_with() as plane, aiohttp.ClientSession() as session:
        data = io.BytesIO(b"x" * BODY_BYTES * 4)
        async with session.post(plane.url + "/v1/files", data=data) as response:
            assert response.status == 200
        assert len(plane.api.received[0].body) == BODY_BYTES * 4


@pytest.mark.parametrize(
    "lines",
    [
        [f"h{number}: x" for number in range(150)],
        [f"h{number}: {'x' * 7000}" for number in range(12)],
    ],
    ids=["many", "long"],
)
@pytest.mark.parametrize("path", [PATH, "/v1/models"])
async def test_heads_have_limits(lines, path):
    async with plane_with() as plane:
        check(await exchange(plane, head_of(path, 0, *lines)), HeadTooLargeError(""))
        assert not plane.decisions.calls


CHUNKED = "transfer-encoding: chunked"
SMUGGLED = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
"""The end of a chunked body, and a second request, for who reads the length of the body otherwise."""


MALFORMED = (
    b"GARBAGE\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET * HTTP/1.1\r\nhost: a\r\n\r\n",
    b"post /v1/models HTTP/1.1\r\nhost: a\r\n\r\n",
    head_of(PATH + "%00"),
    head_of(PATH + "#fragment"),
    head_of(PATH, "-1"),
    head_of(PATH, "+2") + b"{}",
    head_of(PATH, "0x2") + b"{}",
    head_of(PATH, 10**30) + b"{}",
    head_of(PATH, "2, 2") + b"{}",
    head_of(PATH, 2, "content-length: 2") + b"{}",
    head_of(PATH, 3, "content-length: 4") + b"{} ",
    head_of(PATH, len(SMUGGLED), CHUNKED) + SMUGGLED,
    head_of(PATH, 3, "transfer-encoding: identity") + SMUGGLED,
    head_of(PATH, 3, CHUNKED + " ") + SMUGGLED,
    head_of(PATH, 3, CHUNKED.replace(": ", ": \v")) + SMUGGLED,
    head_of(PATH, 3, CHUNKED, "transfer-encoding: identity") + SMUGGLED,
    head_of(PATH, 3, CHUNKED.replace(":", " :")) + SMUGGLED,
    head_of(PATH, None, "transfer-encoding: identity") + SMUGGLED,
    head_of(PATH, None, "transfer-encoding: xchunked") + SMUGGLED,
    head_of(PATH, None, "transfer-encoding: gzip, chunked") + SMUGGLED,
    head_of(PATH, None, CHUNKED, CHUNKED) + SMUGGLED,
    head_of(PATH, 0, "x-a : b"),
    head_of(PATH, 0, ": b"),
    head_of(PATH, 0, "x-a: a\0b"),
)


async def test_requests_that_are_no_http_are_rejected():
    async with plane_with() as plane:
        await plane.worker(answering(body=WHOLE))
        for request in MALFORMED:
            answer = await exchange(plane, request)
            check(answer, InvalidRequestError("", code="malformed_request"))
            assert answer[1]["connection"] == "close", request
        assert not plane.decisions.calls
        assert not plane.api.received


async def test_a_connection_changes_to_no_other_protocol():
    websocket = ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"]
    http2 = ["connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk"]
    async with plane_with() as plane:
        await plane.worker(answering(body=WHOLE))
        for path in (PATH, "/v1/models"):
            answer = await exchange(plane, head_of(path, 2, *websocket), b"{}")
            check(answer, InvalidRequestError("", code="malformed_request"))
            assert (await exchange(plane, head_of(path, 2, *http2), b"{}"))[0] == 200
        assert len([call for call in plane.decisions.calls if call.headers]) == 1
        assert len(plane.api.received) == 1


async def test_there_is_no_tunnel():
    async with plane_with() as plane:
        for target in (b"127.0.0.1:22", b"a:443"):
            request = b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (target, target)
            answer = await exchange(plane, request)
            check(answer, InvalidRequestError("", code="malformed_request"))


@pytest.mark.parametrize("part", [b"POST /v1/chat/comp", head_of()[:-2], head_of(PATH, 9) + b"abc"])
async def test_slow_requests_time_out(part):
    async with plane_with(
        request_head_timeout_s=0.2,
        request_body_timeout_s=0.2,
        max_body_bytes=1024,
        file_max_bytes=1024,
    ) as plane:
        check(await exchange(plane, part), RequestTimeoutError(""))


async def test_a_connection_that_sends_nothing_is_closed_before_idle_and_slow_ones():
    """The others are older, and have sent a request, a part of one, or the preface of HTTP/2."""
    path, answered = "/v1/models", b'{"by":"api"}'
    async with (
        plane_with(request_head_timeout_s=0.5, keep_alive_timeout_s=3600) as plane,
        http2_client(plane.process.port) as http2,
    ):
        await http2.read_until(SETTINGS)
        idle, slow, silent = [
            await asyncio.open_connection("127.0.0.1", plane.process.port) for _ in range(3)
        ]
        idle[1].write(head_of(path))
        slow[1].write(head_of(path, 2) + b"{")
        await idle[0].readuntil(answered)
        await until(silent[0].at_eof)
        for (reader, writer), part in ((idle, head_of(path)), (slow, b"}")):
            writer.write(part)
            assert b" 200 " in await reader.readuntil(answered)
        http2.send(request(1, path))
        assert await http2.accepts()
        for _, writer in (idle, slow, silent):
            writer.close()


async def test_idle_connections_are_closed():
    async with plane_with(keep_alive_timeout_s=0.2) as plane:
        reader, writer = await asyncio.open_connection("127.0.0.1", plane.process.port)
        assert await reader.read() == b""
        writer.close()


async def test_connections_have_a_limit():
    """Connections that send nothing count, too."""
    async with plane_with(max_connections=3, request_head_timeout_s=600) as plane:
        opened = [await asyncio.open_connection("127.0.0.1", plane.process.port)]
        for _ in range(2):
            opened.append(await asyncio.open_connection("127.0.0.1", plane.process.port))
            opened[-1][1].write(head_of("/v1/models"))
            await opened[-1][0].readuntil(b"\r\n\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", plane.process.port)
        writer.write(head_of("/v1/models"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readuntil(b"\r\n\r\n")
        for _, each in (*opened, (reader, writer)):
            each.close()


@pytest.mark.parametrize(
    ("path", "part"), [(PATH, "decisions"), ("/v1/models", "api"), (PATH, "relay")]
)
async def test_a_missing_server_is_an_error_of_the_api(path, part):
    async with plane_with() as plane:
        await plane.worker(answering(500))
        await (plane.decisions if part == "decisions" else plane.api).stop()
        answer = await exchange(plane, head_of(path, 2), b"{}")
        check(answer, UnavailableError(""))
        assert answer[1]["retry-after"] == "5"


async def test_anthropic_s_clients_get_errors_in_their_format():
    async with plane_with() as plane:
        await plane.api.stop()
        for path in ("/v1/messages", "/v1/messages/count_tokens?beta=true"):
            status, _, body = await exchange(plane, head_of(path, 2), b"{}")
            assert status == 503
            assert orjson.loads(body)["type"] == "error"
            assert orjson.loads(body)["error"]["type"] == "overloaded_error"


async def test_a_decision_that_never_comes_is_an_error():
    short = {}

    def shorten(configuration):
        listener = configuration["static_resources"]["listeners"][0]
        filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        for each in filters:
            if "message_timeout" in each["typed_config"]:
                short[each["name"]] = each["typed_config"]["message_timeout"]
                each["typed_config"]["message_timeout"] = "0.2s"

    async with envoy_plane(replace(LIMITS, max_queue_wait_s=0.1), change=shorten) as plane:
        assert list(short.values()) == ["30.1s"]
        await plane.worker(answering())
        plane.decisions.hold.clear()
        check(await exchange(plane, head_of(PATH, 2), b"{}"), UnavailableError(""))
        plane.decisions.hold.set()


async def test_a_decision_may_ask_for_more_time():
    """A later call that asks for none shows that the first one's time is over."""

    def shorten(configuration):
        listener = configuration["static_resources"]["listeners"][0]
        filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        for each in filters:
            if "message_timeout" in each["typed_config"]:
                each["typed_config"]["message_timeout"] = "2s"

    async with envoy_plane(LIMITS, change=shorten) as plane, aiohttp.ClientSession() as session:
        await plane.worker(answering(body=WHOLE))
        plane.decisions.hold.clear()
        asked = asyncio.ensure_future(session.post(plane.url + PATH, data=b"{}"))
        await until(lambda: plane.decisions.calls and plane.decisions.calls[0].body)
        longest = Duration(seconds=int(MAX_DECISION_S))
        more = pb.ProcessingResponse(override_message_timeout=longest)
        plane.decisions.calls[0].cancel.put_nowait(more)
        check(await exchange(plane, head_of(PATH, 2), b"{}"), UnavailableError(""))
        assert not asked.done()
        plane.decisions.hold.set()
        async with await asked as response:
            assert response.status == 200


async def test_a_client_that_reads_nothing_loses_its_connection():
    """The kernel ends it; Envoy then cancels the call at the worker."""
    event = b"data: " + orjson.dumps({"choices": [{"index": 0, "text": "x" * 10_000}]}) + b"\n\n"

    async def script(received, writer):
        await streaming([], end=False)(received, writer)
        while True:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()

    async with plane_with(client_write_timeout_s=0.5, client_buffer_bytes=16 * 1024) as plane:
        worker = await plane.worker(script, stream=True)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", plane.process.port))
        client.sendall(head_of(PATH, 2) + b"{}")
        await until(worker.lost.is_set)
        await until(plane.decisions.ends)
        flags = plane.decisions.ends()[0].common_properties.response_flags
        assert flags.downstream_connection_termination
        client.close()


async def test_too_much_memory_rejects_requests():
    """The smallest heap that Envoy's own start already exceeds."""

    def shrink(configuration):
        for monitor in configuration["overload_manager"]["resource_monitors"]:
            if "max_heap_size_bytes" in monitor["typed_config"]:
                monitor["typed_config"]["max_heap_size_bytes"] = 1024 * 1024

    async with envoy_plane(LIMITS, change=shrink) as plane:
        async with asyncio.timeout(60):
            while True:
                answer = await exchange(plane, head_of("/v1/models"))
                if answer[0] == 503:
                    break
        check(answer, UnavailableError("", code="overloaded"))
        assert answer[1]["retry-after"] == "5"


async def test_many_calls_wait_on_few_connections_to_the_server():
    """Each waits in the decision; the breakers and the streams of HTTP/2 admit them all."""
    calls = 1_500  # over Envoy's own 1,024 of each kind
    async with plane_with(EnvoySettings(envoy_concurrency=1), max_connections=4_000) as plane:
        await plane.worker(answering(body=WHOLE))
        plane.decisions.hold.clear()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def ask():
                async with session.post(plane.url + PATH, data=b"{}") as response:
                    return response.status

            asked = [asyncio.create_task(ask()) for _ in range(calls)]
            await until(lambda: sum(call.body == b"{}" for call in plane.decisions.calls) == calls)
            plane.decisions.hold.set()
            assert set(await asyncio.gather(*asked)) == {200}
