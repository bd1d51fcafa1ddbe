"""Every endpoint reads compressed bodies, within the limits of plain ones."""

import gzip
import json
import random
import zlib

import brotli
import pytest
from server_client import PROFILE
from whole_server import WholeServer

from fairserve.platform.server.http.decoding import zstd

ENCODE = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=4),
    "zstd": zstd.compress,
}
MESSAGES = {"messages": [{"role": "user", "content": "hello " * 20}]}
CHAT = {"model": "scripted", **MESSAGES}
LINE = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "scripted", "prompt": "hello"},
    "/v1/messages": CHAT | {"max_tokens": 9},
    "/v1/messages/count_tokens": CHAT,
    "/v1/responses": {"model": "scripted", "input": "hello"},
    "/v1/conversations": {"metadata": {"a": "b"}},
    "/v1/interactions": {"model": "scripted", "nodes": [{"id": "a", **MESSAGES}]},
}
"""Bodies of an app, by path."""
MAX_BODY_BYTES = 1024 * 1024
BOMB = b'{"model": "' + b" " * 3_000_000 + b'"}'
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%s\r\n--x--\r\n'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with an app."""
    folder = tmp_path_factory.mktemp("server") / "data"
    with WholeServer(
        folder, max_body_bytes=MAX_BODY_BYTES, file_max_bytes=MAX_BODY_BYTES
    ) as server:
        server.tenant, server.app_made = server.new_tenant_and_app("acme")
        server.key = server.app_made["api_key"]
        yield server


def post(server, key, path, data, coding, **headers):
    headers |= {"Content-Encoding": coding}
    headers.setdefault("Content-Type", "application/json")
    return server.request("POST", path, key, content=data, headers=headers)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_an_invalid_body_is_rejected_with_its_coding(server, path):
    """The client may not know that a proxy compressed it."""
    answer = post(server, server.key, path, gzip.compress(b'{"model": 5}'), "gzip")
    assert answer.status_code == 400
    assert "decoded from gzip" in answer.json()["error"]["message"]
    plain = server.request("POST", path, server.key, json={"model": 5})
    assert "decoded" not in plain.text


@pytest.mark.parametrize("coding", ENCODE)
def test_each_endpoint_reads_each_coding(server, coding):
    for path, body in BODIES.items():
        plain = server.request("POST", path, server.key, json=body)
        coded = post(server, server.key, path, ENCODE[coding](json.dumps(body).encode()), coding)
        assert coded.status_code == plain.status_code < 300, (path, coded.text, plain.text)
        assert coded.json().keys() == plain.json().keys()
    app = json.dumps({"name": f"app-{coding}", "profile": PROFILE}).encode()
    answer = post(server, server.tenant["api_key"], "/v1/apps", ENCODE[coding](app), coding)
    assert answer.status_code == 201, answer.text
    form = f"key={server.admin_key}".encode()
    answer = post(
        *(server, None, "/console/sign-in", ENCODE[coding](form), coding),
        **{"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"},
    )
    assert [each.status_code for each in answer.history] == [303]


@pytest.mark.parametrize("coding", ENCODE)
def test_a_compressed_upload_is_stored_as_it_was(server, coding):
    content = json.dumps(LINE).encode() + random.Random(1).randbytes(200_000).hex().encode()
    request = server.client.build_request(
        "POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)}
    )
    data = ENCODE[coding](request.read())
    kind = request.headers["content-type"]
    answer = post(server, server.key, "/v1/files", data, coding, **{"Content-Type": kind})
    assert answer.status_code == 200, answer.text
    path = f"/v1/files/{answer.json()['id']}/content"
    assert server.request("GET", path, server.key).content == content


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files", "/v1/apps"])
@pytest.mark.parametrize("coding", ENCODE)
def test_the_limit_is_that_of_the_plain_body(server, coding, path):
    key = server.tenant["api_key"] if path == "/v1/apps" else server.key
    bomb = ENCODE[coding](FORM % BOMB if path == "/v1/files" else BOMB)
    assert len(bomb) < MAX_BODY_BYTES / 50
    kind = "multipart/form-data; boundary=x" if path == "/v1/files" else "application/json"
    answer = post(server, key, path, bomb, coding, **{"Content-Type": kind})
    assert answer.status_code == 413, answer.text
    assert answer.json()["error"]["code"] == "body_too_large"


def test_other_codings_get_415_and_those_that_are_read(server):
    for coding in ("compress", "gzip, br", "lz4"):
        for path in BODIES:
            answer = post(server, server.key, path, b"x", coding)
            assert answer.status_code == 415, path
            assert answer.headers["accept-encoding"] == "gzip, deflate, br, zstd"
            assert coding.split(",")[0] in answer.json()["error"]["message"]
    assert post(server, "sk-fs-a-" + "0" * 40, "/v1/files", b"x", "lz4").status_code == 401


def test_a_damaged_body_names_its_coding(server):
    for coding, encode in ENCODE.items():
        answer = post(server, server.key, "/v1/chat/completions", encode(b"{}")[:-1], coding)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "malformed_body"
        assert coding in answer.json()["error"]["message"]
