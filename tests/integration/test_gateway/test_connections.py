"""Clients that open connections and send nothing, too much, or too slowly are limited.

Durations are not measured: a server with short time limits is waited for.
"""

import json
import select
import socket
from contextlib import ExitStack, contextmanager

import pytest
from constants import defaults
from gateway_server import ADMIN_KEY
from processes import eventually

from fairserve.platform.server import process

DEADLINE_S = 60
SHORT_S = 0.3
HEAD_BYTES = 64 * 1024
OK = b"GET /health/liveliness HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def connected(server):
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as client:
        yield client


def answer(client):
    """Return status and body of the next answer of a connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(client)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if b"content-length" in line
    )
    while len(body) < length:
        body += received(client)
    assert len(body) == length
    return int(head.split()[1]), json.loads(body), head.lower()


def received(client):
    data = client.recv(1 << 16)
    assert data, "the server closed the connection"
    return data


def ended(client):
    """Return whether the server closes the connection, possibly with a reset."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture(scope="module")
def few(start_server, scripted):
    """Yield a server with few connections, behind a proxy at 127.0.0.9."""
    with defaults(process, "RequestLimits", head_timeout_s=600.0, body_timeout_s=600.0):
        return start_server(
            *("--worker-urls", scripted[0].url, "--trusted-proxies", "127.0.0.9"),
            *("--max-connections", "40", "--max-connections-per-address", "4"),
        )


@pytest.fixture
def connect(few):
    """Yield a function that opens connections from a loopback address; they are closed at the end."""
    with ExitStack() as stack:

        def connect(address):
            made = socket.create_connection(
                ("127.0.0.1", few.port), DEADLINE_S, source_address=(address, 0)
            )
            return stack.enter_context(made)

        yield connect


# --- time limits ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(start_server, scripted):
    """Yield a server with short time limits."""
    bytes_of = ("--max-body-bytes", "1024", "--file-max-bytes", "1024")
    with defaults(process, "RequestLimits", head_timeout_s=SHORT_S, body_timeout_s=SHORT_S):
        return start_server("--worker-urls", scripted[0].url, *bytes_of)


def test_a_connection_that_sends_nothing_is_closed(hasty):
    with connected(hasty) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize("begun", [b"G", OK[:5], OK[:-2], b"\r\n" * 9 + b"GET / HTTP/1.1\r\n"])
def test_an_unfinished_head_is_answered_408(hasty, begun):
    def rejected():
        """Return the rejection; None if the time limit passed before the test sent a byte."""
        with connected(hasty) as client:
            try:
                client.sendall(begun)
                status, body, head = answer(client)
            except (AssertionError, ConnectionError):
                return None
            assert ended(client)
            return status, body["error"]["code"], b"connection: close" in head

    assert eventually(rejected) == (408, "request_timeout", True)


def test_each_head_on_a_connection_has_the_same_time_limit(hasty):
    with connected(hasty) as client:
        client.sendall(OK)
        assert answer(client)[0] == 200
        client.sendall(OK[:20])
        assert answer(client)[0] == 408
        assert ended(client)


def test_a_missing_body_is_answered_408(hasty):
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        f"Authorization: Bearer {hasty.app_key}\r\n\r\n"
    )
    with connected(hasty) as client:
        client.sendall(head.encode() + b"{")
        status, body, _ = answer(client)
        assert (status, body["error"]["code"]) == (408, "request_timeout")
        assert ended(client)


# --- size limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [b"x", b"a: b\r\n"], ids=["one header", "many headers"])
@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
def test_a_head_over_64_kib_is_answered_431(few, before, line):
    with connected(few) as client:
        for _ in range(before):
            client.sendall(OK)
            assert answer(client)[0] == 200
        client.sendall(OK[:-2] + line * (HEAD_BYTES // len(line)))
        status, body, _ = answer(client)
        assert (status, body["error"]["code"]) == (431, "head_too_large")
        assert ended(client)


def test_a_head_of_64_kib_is_accepted(few):
    filler = b"a: " + b"x" * (HEAD_BYTES - len(OK) - 5) + b"\r\n"
    with connected(few) as client:
        client.sendall(OK[:-2] + filler + b"\r\n")
        assert answer(client)[0] == 200


def test_a_trailer_over_64_kib_is_answered_431(few):
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        f"Authorization: Bearer {few.app_key}\r\n\r\n2\r\n{{}}\r\n0\r\n"
    )
    with connected(few) as client:
        client.sendall(head.encode() + b"x-end: " + b"x" * 2 * HEAD_BYTES)
        assert answer(client)[0] == 431
        assert ended(client)


def test_invalid_http_is_answered_400_in_the_api_format(few):
    with connected(few) as client:
        client.sendall(b"EHLO example.org\r\n\r\n" + b"x" * HEAD_BYTES)
        status, body, _ = answer(client)
        assert (status, body["error"]["code"]) == (400, "malformed_request")
        assert ended(client)


# --- numbers of connections -----------------------------------------------------------------------


def alive(client, **headers):
    """Return the status of a health check."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    client.sendall(OK[:-2] + lines.encode() + b"\r\n")
    return answer(client)[0]


def test_connections_of_one_address_are_bounded(few, connect):
    clients = [connect("127.0.0.2") for _ in range(4)]
    assert [alive(client) for client in clients] == [200] * 4
    status, body, head = answer(connect("127.0.0.2"))
    assert (status, body["error"]["code"]) == (429, "too_many_connections")
    assert b"retry-after: 1\r\n" in head
    assert alive(connect("127.0.0.3")) == 200
    clients.pop().close()
    eventually(lambda: served_from(connect("127.0.0.2")), "the closed one still counts")


def served_from(client):
    """Return whether a new connection is accepted; a rejected one may be reset before its answer."""
    try:
        return alive(client) == 200
    except (AssertionError, ConnectionError):
        return False


def test_idle_connections_are_bounded_in_total(few, connect):
    clients = [connect(f"127.0.1.{number}") for number in range(1, 42)]
    rejected, _, _ = select.select(clients, [], [], DEADLINE_S)
    status, body, head = answer(rejected[0])
    assert (status, body["error"]["code"]) == (503, "too_many_connections")
    assert b"retry-after" in head
    for client in clients:
        client.close()
    eventually(lambda: served_from(connect("127.0.1.99")), "the closed ones still count")


def begin_request(few, client, forwarded):
    """Begin a request whose body the server waits for; return the status of a rejection, if any."""
    client.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n"
        + f"X-Forwarded-For: {forwarded}\r\nAuthorization: Bearer {few.app_key}\r\n\r\n".encode()
    )
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(client)
    return int(data.split()[1])


def test_requests_through_a_proxy_count_for_its_client(few, connect):
    proxy = "127.0.0.9"
    waiting = [connect(proxy) for _ in range(4)]
    assert [begin_request(few, each, "10.0.0.1") for each in waiting] == [100] * 4
    assert begin_request(few, connect(proxy), "10.0.0.1") == 429
    assert begin_request(few, connect(proxy), "10.9.9.9, 10.0.0.1") == 429, (
        "what a client adds is to the left"
    )
    assert begin_request(few, connect(proxy), "10.0.0.2") == 100
    waiting[0].sendall(b"{}")
    assert answer(waiting[0])[0] == 400
    assert begin_request(few, connect(proxy), "10.0.0.1") == 100, (
        "a request that ended no longer counts"
    )
    waiting[1].close()

    def taken():
        with connect(proxy) as client:
            return begin_request(few, client, "10.0.0.1") == 100

    eventually(taken, "the closed one still counts")


def test_only_trusted_proxies_name_client_addresses(few, connect):
    clients = [connect("127.0.0.4") for _ in range(4)]
    for number, client in enumerate(clients):
        assert begin_request(few, client, f"10.1.0.{number}") == 100
    assert answer(connect("127.0.0.4"))[0] == 429


@pytest.mark.parametrize(("peer", "secure"), [("127.0.0.9", True), ("127.0.0.4", False)])
def test_only_trusted_proxies_name_the_scheme(few, connect, peer, secure):
    """The cookie of a sign-in shows the scheme that the server assumes."""
    form = f"key={ADMIN_KEY}".encode()
    with connect(peer) as client:
        client.sendall(
            b"POST /console/sign-in HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(form), form)
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += received(client)
    assert b" 303 " in head
    assert (b"secure" in head.lower()) is secure
