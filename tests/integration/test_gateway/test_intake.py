"""The server reads no body without a valid key, and no more of a body than is allowed."""

import json
import re
import socket
from contextlib import ExitStack

import pytest
from fastapi.routing import APIRoute
from processes import eventually
from scripted_worker import ScriptedWorker
from server_client import DEADLINE_S, PROFILE

from fairserve.engine.torch.builtin_model import ensure_builtin_model
from fairserve.platform.fleet.models import BODY_BASE_BYTES, BODY_BYTES_PER_TOKEN
from fairserve.platform.server.app import create_app
from fairserve.platform.server.settings import Settings

PATH = "/v1/chat/completions"
UNKNOWN = "sk-fs-a-" + "0" * 40
PUBLIC = ("/health/", "/docs", "/openapi.json", "/console")
WITH_BODY = {"POST", "PUT", "PATCH", "DELETE"}


def routes(router):
    """Return method and path of every route with a body."""
    for route in (each for each in router.routes if isinstance(each, APIRoute)):
        for method in route.methods & WITH_BODY:
            yield method, re.sub(r"{[^}]+}", "x", route.path)


APP = create_app(Settings(), None)
KEYED = sorted(each for each in routes(APP) if not each[1].startswith(PUBLIC))


def ask(server, method, path, key=None, *, length, body=b"", source="127.0.0.1", **headers):
    """Send the head of a request and maybe a body; return status, error and the open connection."""
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
    """Return status, error and headers of the next answer."""
    file = client.makefile("rb")
    status = int(file.readline().split()[1])
    headers = dict(
        line.decode().strip().lower().split(": ", 1) for line in iter(file.readline, b"\r\n")
    )
    data = json.loads(file.read(int(headers["content-length"])))
    file.close()
    return status, data.get("error", data), headers


def test_routes_of_every_kind_are_found():
    paths = {path.split("/x")[0] for _, path in KEYED}
    assert {PATH, "/v1/interactions", "/v1/apps", "/v1/webhooks", "/admin/throttling"} <= paths


@pytest.mark.parametrize("key", [None, UNKNOWN], ids=["no key", "unknown key"])
def test_no_route_reads_a_body_without_a_key(server, key):
    """The body is announced and never sent: a server that reads it would not answer."""
    for method, path in KEYED:
        status, error, _, client = ask(server, method, path, key, length=1000)
        client.close()
        code = error["type"] if path.startswith("/v1/messages") else error["code"]
        assert status == 401, (method, path)
        assert code in ("invalid_api_key", "authentication_error"), (method, path)


def test_operator_routes_read_no_body_with_a_tenant_key(server):
    for method, path in KEYED:
        if path.startswith("/admin"):
            status, error, _, client = ask(server, method, path, server.tenant_key, length=1000)
            client.close()
            assert (status, error["code"]) == (403, "insufficient_scope"), (method, path)


def test_console_forms_are_not_read_without_a_session(server):
    forms = [p for m, p in routes(APP) if p.startswith("/console/") and p != "/console/sign-in"]
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert forms
    for path in forms:
        client = socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
        head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "x", **kind}.items())
        client.sendall(f"POST {path} HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\n".encode())
        assert client.recv(12) in (b"HTTP/1.1 303", b"HTTP/1.1 401"), path
        client.close()


def test_the_answer_arrives_before_the_connection_closes(server):
    """The rest of an unread body is discarded, so that the connection is not reset."""
    size = 1 << 20
    status, _, headers, client = ask(server, "POST", PATH, UNKNOWN, length=size, body=b" " * size)
    assert (status, headers["connection"]) == (401, "close")
    assert client.recv(1) == b""
    client.close()


def test_a_rejected_request_leaves_the_connection_usable(server):
    """The rest of its body is discarded before the next request."""
    data = b" " * 200_000
    key = server.tenant_key
    status, _, _, client = ask(server, "POST", PATH, key, length=len(data), body=data)
    assert status == 403
    client.sendall(b"GET /health/liveliness HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer(client)[0] == 200
    client.close()


def test_an_endless_unread_body_closes_the_connection(server):
    chunked = {"Transfer-Encoding": "chunked"}
    status, _, _, client = ask(server, "POST", PATH, UNKNOWN, length=None, **chunked)
    assert status == 401
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with pytest.raises(ConnectionError):
        client.sendall(chunk * 100)
    client.close()


@pytest.mark.parametrize("path", ["/v1/apps", "/v1/webhooks"])
def test_a_body_over_its_limit_is_413_declared_or_not(server, path):
    """FastAPI itself would answer 400."""
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


# --- models -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sized(start_server):
    """Yield a server with a small and a large model, both with a tokenizer and text only."""
    workers = [
        ScriptedWorker(model="small", context_tokens=1024),
        ScriptedWorker(model="large", context_tokens=4096, kv_blocks=1024),
    ]
    urls = ",".join(worker.url for worker in workers)
    server = start_server("--worker-urls", urls, "--model", str(ensure_builtin_model()))
    eventually(lambda: server.http.get("/health/readiness").json()["models"] == 2)
    yield server
    for worker in workers:
        worker.close()


def limit(context_tokens):
    return BODY_BASE_BYTES + BODY_BYTES_PER_TOKEN * context_tokens


def prompt(model, size):
    """Return a request of exactly ``size`` bytes."""
    body = {"model": model, "messages": [{"role": "user", "content": ""}]}
    body["messages"][0]["content"] = "x" * (size - len(json.dumps(body)))
    return json.dumps(body).encode()


def post(server, data, key=None):
    headers = {"Content-Type": "application/json"}
    answer = server.request("POST", PATH, key or server.app_key, content=data, headers=headers)
    return answer.status_code, answer.json()["error"]


def test_a_body_too_large_for_all_models_of_the_app_is_not_read(sized):
    status, error, _, client = ask(sized, "POST", PATH, sized.app_key, length=limit(4096) + 1)
    assert (status, error["code"]) == (413, "body_too_large")
    assert error["message"].endswith(f"allowed here: {limit(4096)}")
    client.close()


def test_an_app_with_a_small_model_has_its_body_limit(sized):
    made = {"name": "small", "profile": PROFILE, "contract": {"allowed_models": ["small"]}}
    app = sized.request("POST", "/v1/apps", sized.tenant_key, json=made)
    assert app.status_code == 201, app.text
    key = app.json()["api_key"]
    status, error, _, client = ask(sized, "POST", PATH, key, length=limit(1024) + 1)
    assert (status, error["code"]) == (413, "body_too_large")
    client.close()


def test_a_body_too_large_for_its_model_is_not_validated(sized):
    """The body lacks a required field, which the answer does not mention."""
    data = json.dumps({"model": "small", "x": "x" * limit(1024)}).encode()
    status, error = post(sized, data)
    assert (status, error["code"]) == (413, "body_too_large")
    assert f"allowed for 'small': {limit(1024)}" in error["message"]
    status, error = post(sized, data.replace(b'"small"', b'"large"'))
    assert (status, error["code"]) == (400, "missing_required_parameter")


@pytest.mark.parametrize("model", ["small", "large"])
def test_a_prompt_that_cannot_fit_is_rejected_without_being_tokenised(sized, model):
    status, error = post(sized, prompt(model, limit(1024)))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("messages: the prompt has at least ")


def test_a_prompt_that_may_fit_is_counted(sized):
    status, error = post(sized, prompt("small", 2000))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "at least one" in error["message"]
    assert "at least " not in error["message"].split(";")[0]


# --- memory -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tight(start_server, scripted):
    """Yield a server with memory for the bodies of a few calls, two of them of one tenant."""
    return start_server(
        *("--worker-urls", scripted[0].url, "--max-body-bytes", "2048"),
        *("--max-body-memory-bytes", "9000", "--max-tenant-share", "0.5"),
        *("--set", "resident_share=null"),  # the worker holds more calls than its memory could
    )


def new_tenant(server, name):
    """Return the key of an app of a new tenant."""
    made = server.admin("POST", "/admin/tenants", json={"name": name})
    assert made.status_code == 201, made.text
    return server.new_key("app", tenant_key=made.json()["api_key"])


@pytest.fixture
def holding(tight, scripted):
    """Yield a function that starts calls held at the worker; they end with the test."""
    worker = scripted[0]
    with ExitStack() as stack:

        def hold(key, **headers):
            before = len(worker.holding)
            body = {"model": "scripted", "messages": [{"role": "user", "content": ""}]}
            body["messages"][0]["content"] = "hold " + "x" * 1900
            made = stack.enter_context(
                tight.asking(PATH, body, Authorization=f"Bearer {key}", **headers)
            )
            eventually(lambda: len(worker.holding) > before, "the worker does not get it")
            return made

        yield hold
        worker.release()


def test_bodies_of_calls_in_progress_have_a_budget_and_each_tenant_a_share(tight, holding):
    others = [new_tenant(tight, name) for name in ("second", "third", "last")]
    first = [holding(tight.app_key) for _ in range(2)]
    status, error = post(tight, prompt("scripted", 1000), tight.app_key)
    assert (status, error["code"]) == (429, "body_share_full")
    holding(others[0])
    status, error = post(tight, prompt("scripted", 1000), others[0])
    assert (status, error["code"]) == (429, "body_share_full"), "half of what the first leaves"
    holding(others[1])
    status, error = post(tight, prompt("scripted", 1500), others[2])
    assert (status, error["code"]) == (503, "body_memory_full")
    declared = ask(tight, "POST", PATH, others[2], length=1500)
    assert declared[0] == 503, "it is not read"
    assert int(declared[2]["retry-after"]) > 0
    declared[-1].close()
    for made in first:
        made.close()

    def taken():
        return post_small(tight, tight.app_key).status_code == 200

    eventually(taken, "what a call held is not released")


def post_small(server, key):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "ok " + "x" * 900}]}
    return server.post(PATH, body, key)


def test_a_call_that_outlives_its_client_keeps_the_memory_of_its_body(tight, holding, scripted):
    key = new_tenant(tight, "fourth")
    for number in range(2):
        holding(key, **{"Idempotency-Key": f"outlives-{number}"}).close()
    status, error = post(tight, prompt("scripted", 1000), key)
    assert (status, error["code"]) == (429, "body_share_full")
    scripted[0].release()
    eventually(lambda: post_small(tight, key).status_code == 200, "it is not released")
