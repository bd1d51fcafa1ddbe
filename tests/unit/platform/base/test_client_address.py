"""The address and scheme of a request are taken from trusted proxies only."""

import pytest

from fairserve.platform.base.client_address import (
    address_block,
    client_address,
    client_scheme,
    parse_networks,
)
from fairserve.platform.console.settings import ConsoleSettings

PROXIES = parse_networks(["10.0.0.0/8", "fd00::/8", "192.0.2.1"])


def scope(peer, *forwarded, **headers):
    lines = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    lines += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"client": peer and (peer, 1234), "scheme": "http", "headers": lines}


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.9", ["1.1.1.1"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["9.9.9.9, 1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["9.9.9.9", "1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["9.9.9.9, 1.1.1.1, 10.2.2.2, 192.0.2.1"], "1.1.1.1"),
        ("10.0.0.1", ["9.9.9.9, 1.1.1.1:4567"], "1.1.1.1"),
        ("10.0.0.1", ["[2001:db8::1]:4567"], "2001:db8::1"),
        ("10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["1.1.1.1, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1, unknown, 10.3.3.3"], "10.3.3.3"),
        ("10.0.0.1", ["x" * 5000], "10.0.0.1"),
        ("10.0.0.1", ["10.4.4.4, 10.5.5.5"], "10.4.4.4"),
        ("::ffff:10.0.0.1", ["::ffff:1.1.1.1"], "1.1.1.1"),
        ("fd00::1", ["1.1.1.1"], "1.1.1.1"),
        (None, ["1.1.1.1"], ""),
        ("testclient", ["1.1.1.1"], "testclient"),
    ],
)
def test_address_is_the_last_one_that_is_no_proxy(peer, forwarded, address):
    assert client_address(scope(peer, *forwarded), PROXIES) == address


def test_no_proxy_is_trusted_by_default():
    assert ConsoleSettings().proxy_networks == ()
    forged = scope("127.0.0.1", "1.1.1.1", x_forwarded_proto="https")
    assert client_address(forged, ()) == "127.0.0.1"
    assert client_scheme(forged, ()) == "http"


def test_scheme_is_taken_from_the_last_proxy():
    for sent, scheme in (("https", "https"), ("http, HTTPS", "https"), ("ftp", "http")):
        assert client_scheme(scope("10.0.0.1", x_forwarded_proto=sent), PROXIES) == scheme
    assert client_scheme(scope("10.0.0.1"), PROXIES) == "http"
    assert client_scheme(scope(None, x_forwarded_proto="https"), PROXIES) == "http"


def test_a_client_is_identified_by_ipv4_address_or_ipv6_network():
    assert address_block("1.2.3.4") == "1.2.3.4"
    assert address_block("2001:db8:1:2:3:4:5:6") == "2001:db8:1:2::/64"
    assert address_block("") == ""


def test_proxy_networks_are_read_from_a_list(monkeypatch):
    monkeypatch.setenv("FAIRSERVE_TRUSTED_PROXIES", " 10.0.0.0/8, ::1 ")
    assert [str(each) for each in ConsoleSettings().proxy_networks] == [
        "10.0.0.0/8",
        "::1/128",
    ]
    for wrong in ("10.0.0.1/8", "proxy.example", "*"):
        with pytest.raises(ValueError, match="CIDR network without host bits"):
            ConsoleSettings(trusted_proxies=wrong)
