"""Addresses of clients behind proxies that are trusted, and behind others."""

from ipaddress import ip_network

import pytest

from fairserve.platform.client_address import MAX_HOPS, client_address, is_trusted

TRUSTED = (ip_network("10.0.0.0/24"), ip_network("fd00::/8"))


def scope(peer, *forwarded):
    return {
        "client": (peer, 4711) if peer else None,
        "headers": [(b"x-forwarded-for", value.encode()) for value in forwarded],
    }


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.1"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["198.51.100.1:8080"], "198.51.100.1"),
        ("fd00::1", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["198.51.100.1, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1, unknown, 10.0.0.3"], "10.0.0.3"),
        ("10.0.0.1", ["10.0.0.7, 10.0.0.8"], "10.0.0.7"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_the_first_address_from_the_right_that_is_no_trusted_proxy(peer, forwarded, expected):
    assert client_address(scope(peer, *forwarded), TRUSTED) == expected


def test_without_trusted_proxies_the_peer_is_the_client():
    assert client_address(scope("10.0.0.1", "198.51.100.1"), ()) == "10.0.0.1"


def test_a_long_header_is_read_from_its_end_only():
    hops = ", ".join(["198.51.100.1"] + ["10.0.0.2"] * MAX_HOPS)
    assert client_address(scope("10.0.0.1", hops), TRUSTED) == "10.0.0.2"


def test_what_is_no_address_is_not_trusted():
    assert not is_trusted("testclient", TRUSTED)
