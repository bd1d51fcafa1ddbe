"""The sign-in of a server limits wrong keys by client address, and records them in the audit log."""

import httpx
import pytest
from constants import defaults
from gateway_server import ADMIN_KEY
from server_client import DEADLINE_S

from fairserve.platform.console import state

PROXY = "127.0.0.2"
IN_ALL = 30


@pytest.fixture(scope="module")
def urls(scripted):
    return ",".join(worker.url for worker in scripted)


@pytest.fixture(scope="module")
def by_default(start_server, urls):
    """Yield a server without trusted proxies."""
    return start_server("--worker-urls", urls)


@pytest.fixture(scope="module")
def signing_in(start_server, urls):
    """Yield a server behind a proxy at ``PROXY``."""
    with defaults(state, "SignInLimit", limit_in_all=IN_ALL):
        return start_server("--worker-urls", urls, "--trusted-proxies", PROXY)


@pytest.fixture
def connect(signing_in):
    """Yield a function that connects to the server from a loopback address."""
    clients = []

    def connect(address, server=signing_in):
        transport = httpx.HTTPTransport(local_address=address)
        client = httpx.Client(base_url=server.url, transport=transport, timeout=DEADLINE_S)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


def sign_in(client, key="wrong", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/console/sign-in", data={"key": key}, headers=headers)


def entries(server, **query):
    found = server.admin("GET", "/admin/audit", params={"limit": 1000, **query}).json()
    return found["items"]


def test_a_client_cannot_choose_its_address(connect, by_default, caplog):
    """By default no address is a proxy, not even one of the same machine."""
    client = connect("127.0.0.1", by_default)
    found = [sign_in(client, x_forwarded_for=f"10.0.0.{number}") for number in range(40)]
    assert [answer.status_code for answer in found] == [401] * 10 + [429] * 30
    assert int(found[-1].headers["retry-after"]) > 0
    assert caplog.text.count("trusted_proxies is empty") == 1
    other = sign_in(connect("127.0.0.9", by_default), ADMIN_KEY, x_forwarded_proto="https")
    assert other.status_code == 303
    assert "secure" not in other.headers["set-cookie"].lower()
    (failed,) = entries(by_default, action="console.sign_in_failed")
    assert (failed["target"], failed["actor"], failed["actor_key_id"]) == (
        "127.0.0.1",
        "unknown",
        None,
    )


def test_the_proxy_names_the_client_address(connect, signing_in):
    client = connect(PROXY)
    found = [sign_in(client, x_forwarded_for=f"{number}.1.1.1, 192.0.2.7") for number in range(12)]
    assert [answer.status_code for answer in found] == [401] * 10 + [429] * 2
    answer = sign_in(client, ADMIN_KEY, x_forwarded_for="192.0.2.8", x_forwarded_proto="https")
    assert answer.status_code == 303
    assert "secure" in answer.headers["set-cookie"].lower()
    assert ADMIN_KEY not in str(entries(signing_in))
    newest = entries(signing_in, action="console.sign_in")[0]
    assert newest["after"] == {"address": "192.0.2.8", "by": "key", "role": "admin"}
    assert newest["actor_key_id"] == newest["target"]


def test_wrong_keys_from_many_addresses_delay_but_lock_no_client_out(
    connect, signing_in, monkeypatch
):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    limit = signing_in.application.state.console.sign_ins
    monkeypatch.setattr(limit, "_sleep", sleep)
    client = connect(PROXY)
    for number in range(IN_ALL + 5):
        assert sign_in(client, x_forwarded_for=f"198.51.100.{number}").status_code == 401
    before = len(waits)
    assert before >= 5
    assert sign_in(client, ADMIN_KEY, x_forwarded_for="203.0.113.1").status_code == 303
    assert len(waits) == before + 1
    failed = entries(signing_in, action="console.sign_in_failed")
    assert 0 < len(failed) <= 20, "the log is bounded"
