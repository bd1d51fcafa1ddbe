"""What the server reads of requests: nothing without a key, and of a body no more than it may have."""

import json
import re
import socket

import pytest
from fastapi.routing import APIRoute
from gateway_server import DEADLINE_S

from fairserve.platform.app import create_app
from fairserve.platform.settings import Settings

PATH = "/v1/chat/completions"
UNKNOWN = "sk-fs-a-" + "0" * 40
PUBLIC = ("/health/", "/docs", "/openapi.json", "/console")
WITH_BODY = {"POST", "PUT", "PATCH", "DELETE"}


def routes(router):
    """Method and path of every route with a body, those of included routers too."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes(inner)
        elif isinstance(route, APIRoute):
            for method in route.methods & WITH_BODY:
                yield method, re.sub(r"{[^}]+}", "x", route.path)


APP = create_app(Settings(), None)
KEYED = sorted(each for each in routes(APP) if not each[1].startswith(PUBLIC))


def ask(server, method, path, key=None, *, length, body=b"", source="127.0.0.1", **headers):
    """Send the head of a request and maybe a body; the status, the error and the open connection."""
    client = socket.create_connection(
        ("127.0.0.1", server.port), DEADLINE_S, source_address=(source, 0)
    )
    lines = {"Host": "x", "Content-Type": "application/json", **headers}
    if length is not None:
        lines["Content-Length"] = length
    if key is not None:
        lines["Authorization"] = f"Bearer {key}"
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    client.sendall(f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode())
    if body:
        client.sendall(body)
    return *answer(client), client


def answer(client):
    """Status, error and headers of the next answer."""
    file = client.makefile("rb")
    status = int(file.readline().split()[1])
    headers = dict(
        line.decode().strip().lower().split(": ", 1) for line in iter(file.readline, b"\r\n")
    )
    data = json.loads(file.read(int(headers["content-length"])))
    file.close()
    return status, data.get("error", data), headers


def test_there_are_routes_of_every_kind():
    paths = {path.split("/x")[0] for _, path in KEYED}
    assert {PATH, "/v1/interactions", "/v1/apps", "/v1/webhooks", "/admin/throttling"} <= paths


@pytest.mark.parametrize("key", [None, UNKNOWN], ids=["no key", "unknown key"])
def test_no_route_reads_a_body_without_a_key(server, key):
    """The body is announced and never sent: a server that reads it does not answer."""
    for method, path in KEYED:
        status, error, _, client = ask(server, method, path, key, length=1000)
        client.close()
        assert (status, error["code"]) == (401, "invalid_api_key"), (method, path)


def test_no_operators_route_reads_a_body_with_a_tenants_key(server):
    for method, path in KEYED:
        if path.startswith("/admin"):
            status, error, _, client = ask(server, method, path, server.tenant_key, length=1000)
            client.close()
            assert (status, error["code"]) == (403, "insufficient_scope"), (method, path)


def test_no_form_of_the_console_is_read_without_a_session(server):
    forms = [p for m, p in routes(APP) if p.startswith("/console/") and p != "/console/sign-in"]
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert forms
    for path in forms:
        client = socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
        head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "x", **kind}.items())
        client.sendall(f"POST {path} HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\n".encode())
        assert client.recv(12) in (b"HTTP/1.1 303", b"HTTP/1.1 401"), path
        client.close()


def test_the_answer_is_seen_and_the_connection_stays_usable(server):
    """The rest of a body that was not read is discarded, so that nothing is reset."""
    size = 1 << 20
    status, _, _, client = ask(server, "POST", PATH, UNKNOWN, length=size, body=b" " * size)
    assert status == 401
    client.sendall(b"GET /health/liveliness HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer(client)[0] == 200
    client.close()


def test_an_endless_body_that_nobody_reads_ends_its_connection(server):
    chunked = {"Transfer-Encoding": "chunked"}
    status, _, _, client = ask(server, "POST", PATH, UNKNOWN, length=None, **chunked)
    assert status == 401
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with pytest.raises(ConnectionError):
        client.sendall(chunk * 100)
    client.close()


@pytest.mark.parametrize("path", ["/v1/apps", "/v1/webhooks"])
def test_a_body_over_its_limit_is_413_declared_or_not(server, path):
    """FastAPI would make a 400 of it."""
    size = (1 << 20) + 1
    status, error, _, client = ask(server, "POST", path, server.tenant_key, length=size)
    assert (status, error["code"]) == (413, "body_too_large")
    client.close()
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b" " * size)
    chunked = {"Transfer-Encoding": "chunked"}
    status, error, _, client = ask(
        server, "POST", path, server.tenant_key, length=None, body=chunk, **chunked
    )
    assert (status, error["code"]) == (413, "body_too_large")
    client.close()
