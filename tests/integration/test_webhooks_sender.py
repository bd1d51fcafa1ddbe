"""An attempt connects only to checked addresses, and no receiver affects the others."""

import ssl

import aiohttp
import pytest
from certificates import self_signed
from processes import free_port
from webhook_world import Receiver

from fairserve.platform.background.webhooks import sender, url_checks
from fairserve.platform.background.webhooks.delivery import guard_of


@pytest.fixture
def world(webhooks_world):
    return webhooks_world


@pytest.fixture
def one(world):
    """Return an endpoint, with its signing secret."""
    return world.register()


@pytest.mark.parametrize("status", [302, 307])
def test_redirects_are_failures_and_not_followed(world, one, status):
    target = f"http://127.0.0.1:{world.receiver.port}/elsewhere"
    world.receiver.answers.append((status, {"Location": target}, b""))
    world.write(runs=[world.run()])
    world.deliver()
    assert [message.path for message in world.receiver.received] == ["/hook"]
    (row,) = world.deliveries
    assert (row.state, row.last_status) == ("pending", status)


def test_responses_of_receivers_are_stored_short_and_printable(world, one):
    text = b"\x1b[31mred\x00 \xff\r\nnext" + b"x" * 1_000_000
    world.receiver.answers.append((500, {}, text))
    world.write(runs=[world.run()])
    world.deliver()
    (row,) = world.deliveries
    assert row.last_error.startswith("500: ?[31mred? \ufffd next")
    assert len(row.last_error) <= 200
    assert row.last_error.isprintable()


def test_a_receiver_that_times_out_is_a_failure(world, one):
    world.receiver.hold.clear()
    world.write(runs=[world.run()])
    assert world.deliver(timeout_s=0.05) == 1
    world.receiver.hold.set()
    (row,) = world.deliveries
    assert (row.state, row.last_status, row.last_error) == (
        "pending",
        None,
        "no response within 0.05 s",
    )


def test_a_status_counts_even_if_its_body_never_arrives(world, one, monkeypatch):
    monkeypatch.setattr(sender, "BODY_S", 0.05)
    world.receiver.answers.append((410, {}, None))
    world.write(runs=[world.run()])
    world.deliver()
    (row,) = world.deliveries
    assert (row.state, row.last_status, row.last_error) == ("dead", 410, "410:")


@pytest.fixture
def tls(tmp_path):
    """Return a self-signed certificate for hooks.example, and a client context that trusts it."""
    key, certificate = self_signed(tmp_path, "hooks.example", "DNS:hooks.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, ssl.create_default_context(cafile=str(certificate))


@pytest.mark.parametrize("trusted", ["by us", "by nobody", "under another name"])
def test_the_certificate_must_match_the_name(world, tls, trusted, monkeypatch):
    """The connection uses a checked address, but TLS verifies the name."""
    server, client = tls
    asked = []
    server.sni_callback = lambda connection, name, _: asked.append(name)
    if trusted != "by nobody":
        monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", client)
    receiver = Receiver(server)

    def resolve(host, port):
        return ["127.0.0.1"]

    monkeypatch.setattr(url_checks, "guard_of", lambda settings: guard_of(settings, resolve))
    host = "other.example" if trusted == "under another name" else "hooks.example"
    try:
        world.register(url=f"https://{host}:{receiver.port}/hook")
        world.write(runs=[world.run()])
        assert world.deliver(resolve=resolve) == 1
    finally:
        receiver.close()
    (row,) = world.deliveries
    assert asked == [host]
    if trusted == "by us":
        assert (row.state, len(receiver.received)) == ("delivered", 1)
    else:
        assert (row.state, receiver.received) == ("pending", [])
        assert row.last_error.startswith("ClientConnectorCertificateError")


def test_a_closed_port_is_a_failure(world):
    world.register(url=f"http://127.0.0.1:{free_port()}/")
    world.write(runs=[world.run()])
    assert world.deliver() == 1
    (row,) = world.deliveries
    assert row.last_status is None
    assert "ClientConnectorError" in row.last_error


def test_proxies_of_the_environment_are_ignored(world, one, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    world.write(runs=[world.run()])
    world.deliver()
    assert world.states() == ["delivered"]


def test_a_rebound_dns_name_is_rejected(world, monkeypatch):
    """The name is allowed at registration and not at sending; no other lookup takes place."""
    answers = [["127.0.0.2"], ["169.254.169.254"], ["127.0.0.1"], ["10.0.0.1"]]
    asked = []

    def resolve(host, port):
        asked.append(host)
        return answers.pop(0)

    monkeypatch.setattr(url_checks, "guard_of", lambda settings: guard_of(settings, resolve))
    world.register(url=f"http://hooks.example:{world.receiver.port}/hook")
    world.write(runs=[world.run()])
    assert world.deliver(resolve=resolve) == 1
    (row,) = world.deliveries
    assert (row.last_status, world.receiver.received) == (None, [])
    assert row.last_error.startswith("not sent: hooks.example")
    world.clock.pass_s(60)
    assert world.deliver(resolve=resolve) == 1
    assert world.states() == ["delivered"]
    assert asked == ["hooks.example"] * 3, "one look-up an attempt, whose answer is used"
    (message,) = world.receiver.received
    assert message.headers["host"] == f"hooks.example:{world.receiver.port}"
