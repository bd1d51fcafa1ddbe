"""The configurations of Envoy and nginx in ``deploy/``, with the real programs in front of a server.

The test changes addresses, ports and paths only. Without the program a test is skipped, and fails under
CI=true.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import warnings
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from gateway_server import ADMIN_KEY, ThreadServer
from http2_frames import http2_client, request
from installed_envoy import need_envoy
from processes import eventually, free_port

from fairserve.platform.picker.certificate import self_signed
from fairserve.platform.server.process import KEEP_ALIVE_TIMEOUT_S
from fairserve.platform.server.settings import FIELDS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHAT = "/v1/chat/completions"
CLIENT = "127.0.0.3"
"""Address of the clients: the server trusts that of the proxy, 127.0.0.1, and no other."""
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def need_nginx():
    """Return the path of nginx. Skip without it; fail under CI=true."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        reason = "nginx is not installed: apt-get install nginx"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def changed(text, *pairs):
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def envoy(folder, port, server_port):
    """Return the command of Envoy with the configuration for these ports."""
    binary = need_envoy()
    text = changed(
        (DEPLOY / "envoy.yaml").read_text(),
        ("address: 0.0.0.0, port_value: 8443", f"address: 127.0.0.1, port_value: {port}"),
        ("address: fairserve, port_value: 8000", f"address: 127.0.0.1, port_value: {server_port}"),
        ("/etc/envoy/tls", str(folder)),
    )
    path = folder / "envoy.yaml"
    path.write_text(text)
    return [binary, "-c", str(path), "--concurrency", "1", "--disable-hot-restart", "-l", "warn"]


def nginx(folder, port, server_port):
    """Return the command of nginx with the configuration for these ports."""
    binary = need_nginx()
    temporary = "".join(f"    {name}_temp_path {folder}/{name};\n" for name in TEMPORARY)
    text = changed(
        (DEPLOY / "nginx.conf").read_text(),
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("server fairserve:8000;", f"server 127.0.0.1:{server_port};"),
        ("/etc/nginx/tls", str(folder)),
        ("worker_processes auto;", "worker_processes 1;"),
        ("http {\n", f"http {{\n    access_log off;\n{temporary}"),
    )
    path = folder / "nginx.conf"
    path.write_text(text)
    user = " user root;" if os.geteuid() == 0 else ""  # the folder is ours only
    own = f"daemon off; pid {folder}/nginx.pid;{user}"
    return [binary, "-c", str(path), "-p", str(folder), "-e", str(folder / "error.log"), "-g", own]


class Proxy:
    """A running proxy."""

    def __init__(self, folder, port):
        self.port = port
        self.authority = folder / "tls.crt"
        self.url = f"https://localhost:{port}"

    def client(self):
        """Return a client that connects from :data:`CLIENT`."""
        context = ssl.create_default_context(cafile=self.authority)
        transport = httpx.HTTPTransport(local_address=CLIENT, verify=context)
        return httpx.Client(base_url=self.url, transport=transport, timeout=60)


@contextmanager
def running(command, folder, port):
    log_path = folder / "proxy.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    proxy = Proxy(folder, port)

    def ready():
        assert process.poll() is None, log_path.read_text()
        try:
            with proxy.client() as client:
                return client.get("/health/readiness").status_code == 200
        except httpx.TransportError:
            return False

    try:
        eventually(ready, lambda: log_path.read_text())
        yield proxy
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory, worker):
    folder = tmp_path_factory.mktemp("server") / "data"
    flags = ("--worker-urls", worker.url, "--trusted-proxies", "127.0.0.1", "--keepalive-s", "0.1")
    server = ThreadServer(folder, *flags)
    yield server
    server.close()


@pytest.fixture(scope="module", params=[envoy, nginx], ids=["envoy", "nginx"])
def proxy(request, tmp_path_factory, server):
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    key, certificate = self_signed("localhost")
    (folder / "tls.key").write_bytes(key)
    (folder / "tls.crt").write_bytes(certificate)
    with running(request.param(folder, port, server.port), folder, port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with proxy.client() as client:
        yield client


def chat(text, *, stream=False):
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": text}],
        "stream": stream,
        "max_tokens": 20,
    }


def named(server, run):
    return {"Authorization": f"Bearer {server.app_key}", "X-Interaction-Id": run}


def test_a_whole_call(proxy, client, server):
    run = f"whole-{proxy.port}"
    answer = client.post(CHAT, json=chat("ok"), headers=named(server, run))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"
    assert server.row(interaction_id=run)["outcome"] == "completed"
    assert answer.headers["x-request-id"] == server.row(interaction_id=run)["call_id"]
    assert not [name for name in answer.headers if name.startswith("x-envoy")]


def test_each_chunk_of_a_stream_arrives_before_the_next_is_made(proxy, client, server, worker):
    """The worker waits for the client, which has read what the server has sent so far."""
    run, body = f"stream-{proxy.port}", chat("hold on", stream=True)
    with client.stream("POST", CHAT, json=body, headers=named(server, run)) as answer:
        lines = (line for line in answer.iter_lines() if line)
        for _ in range(3):
            assert next(lines).startswith(":"), "a comment while the call waits"
        worker.release()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    texts = [c["delta"].get("content") for d in data[:-1] for c in json.loads(d)["choices"]]
    assert "".join(filter(None, texts)) == "one two three"


def test_a_client_that_leaves_ends_its_call(proxy, client, server, worker):
    run, body = f"left-{proxy.port}", chat("hold it", stream=True)
    before = worker.disconnects
    with client.stream("POST", CHAT, json=body, headers=named(server, run)) as answer:
        next(answer.iter_lines())
    row = server.row(interaction_id=run)
    assert (row["outcome"], row["error"]) == ("cancelled", "client disconnected")
    eventually(lambda: worker.disconnects == before + 1)


def test_http2_over_tls(proxy, server):
    key = ("authorization", f"Bearer {server.app_key}")
    body = json.dumps(chat("ok", stream=True)).encode()
    with http2_client(proxy.port, proxy.authority) as http2:
        http2.send(request(1, CHAT, key, ("content-type", "application/json"), body=body))
        ok, answer = http2.answer()
    assert ok
    assert answer.rstrip().endswith(b"data: [DONE]")


def test_a_body_that_is_too_large_is_rejected_by_the_proxy(proxy, server):
    """Also one whose length is not declared; the largest allowed one reaches the server."""
    limit = FIELDS["max_body_bytes"].default
    headers = {"Authorization": f"Bearer {server.app_key}", "Content-Type": "application/json"}
    for size, chunked, status in (
        (limit + 1, False, 413),
        (limit + 65536, True, 413),
        (limit, False, 400),
    ):
        context = ssl.create_default_context(cafile=proxy.authority)
        connection = http.client.HTTPSConnection(
            "localhost", proxy.port, timeout=60, context=context
        )
        with closing(connection):
            body = b" " * size
            if chunked:
                body = iter([body[at : at + 65536] for at in range(0, size, 65536)])
            try:
                connection.request("POST", CHAT, body, headers, encode_chunked=chunked)
            except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                assert status == 413, "the answer arrives before the end of the body"
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == status
            ours = b"fairserve" in text or b'"error"' in text
            assert ours == (status == 400), text[:200]


def test_uploads_may_be_larger_than_other_bodies(proxy, client, server):
    size = FIELDS["max_body_bytes"].default + 1_000_000
    line = json.dumps({"custom_id": "x" * 100}).encode() + b"\n"
    content = (line * (size // len(line) + 1))[:size]
    answer = client.post(
        "/v1/files",
        headers={"Authorization": f"Bearer {server.app_key}"},
        data={"purpose": "batch"},
        files={"file": ("lines.jsonl", content)},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == size


@pytest.mark.parametrize("forged", [None, "192.0.2.7", "127.0.0.1", "127.0.0.1, 192.0.2.7", "::1"])
def test_a_client_cannot_choose_its_address(client, server, forged):
    headers = {} if forged is None else {"X-Forwarded-For": forged, "X-Forwarded-Proto": "http"}
    answer = client.post("/console/sign-in", data={"key": ADMIN_KEY}, headers=headers)
    assert answer.status_code == 303
    assert "secure" in answer.headers["set-cookie"].lower(), "the server knows of the TLS"
    query = {"action": "console.sign_in", "limit": 1}
    newest = server.admin("GET", "/admin/audit", params=query).json()["items"][0]
    assert newest["after"]["address"] == CLIENT


def connected(proxy, context):
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=60)
    return context.wrap_socket(connection, server_hostname="localhost")


def test_a_request_with_two_lengths_is_rejected(proxy):
    """Two servers in a row could read another end of it, and another request after that."""
    context = ssl.create_default_context(cafile=proxy.authority)
    with connected(proxy, context) as connection:
        lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
        connection.sendall(b"POST /v1/models HTTP/1.1\r\nHost: a\r\n" + lengths + b"\r\n0\r\n\r\n")
        with connection.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"400"


def test_tls_1_1_is_rejected(proxy):
    context = ssl.create_default_context(cafile=proxy.authority)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        connected(proxy, context)


def test_a_connection_of_http_gets_no_answer_of_the_server(proxy):
    try:
        answer = httpx.get(f"http://127.0.0.1:{proxy.port}/health/liveness")
    except httpx.TransportError:
        return
    assert answer.status_code == 400


@pytest.mark.parametrize("name", ["envoy.yaml", "nginx.conf"])
def test_time_outs_and_limits_fit_the_defaults_of_the_server(name):
    """An idle connection to the server ends earlier at the proxy, and a silent call later."""
    text = (DEPLOY / name).read_text()
    least_s = KEEP_ALIVE_TIMEOUT_S
    longest_s = FIELDS["max_queue_wait_s"].default
    idle, silent = {
        "envoy.yaml": ("{idle_timeout: 60s}", "stream_idle_timeout: 3600s"),
        "nginx.conf": ("keepalive_timeout 60s;", "proxy_read_timeout 3600s;"),
    }[name]
    assert idle in text
    assert silent in text
    assert least_s > 60
    assert longest_s < 3600
    if name == "nginx.conf":
        files = FIELDS["file_max_bytes"].default
        assert f"client_max_body_size {files // 1024 + 64}k;" in text
        assert f"client_max_body_size {FIELDS['max_body_bytes'].default >> 20}m;" in text
    else:
        assert text.count(str(FIELDS["max_body_bytes"].default)) == 2
