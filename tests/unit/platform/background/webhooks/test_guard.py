"""Hostile URLs are rejected, and the checked address is the one that is used: no second lookup."""

from ipaddress import ip_address, ip_network

import pytest
from pydantic import ValidationError

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks.guard import (
    Guard,
    UnsafeUrlError,
    is_public,
    system_resolve,
)

PUBLIC = "8.8.8.8"


def resolver(*addresses):
    def resolve(host, port):
        asked.append((host, port))
        if not addresses:
            raise OSError("no such host")
        return list(addresses)

    asked = resolve.asked = []
    return resolve


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "100::1",
        "2001::7f00:1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "2606:4700::1%eth0",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ],
)
def test_private_addresses_are_not_allowed(address):
    assert not is_public(ip_address(address))
    with pytest.raises(UnsafeUrlError, match="not public"):
        Guard(resolve=resolver(address)).check("https://hooks.example/")
    with pytest.raises(UnsafeUrlError, match="not public"):
        Guard(resolve=resolver(PUBLIC, address)).check("https://hooks.example/")


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        PUBLIC,
        "2606:4700:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::",
    ],
)
def test_public_addresses_are_allowed(address):
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://127.0.0.1/", "not public"),
        ("https://169.254.169.254/latest/meta-data/", "not public"),
        ("https://[::1]/", "not public"),
        ("https://[::ffff:127.0.0.1]/", "not public"),
        ("https://[::ffff:7f00:1]/", "not public"),
        ("https://[64:ff9b::7f00:1]/", "not public"),
        ("https://[fe80::1%25eth0]/", "no name has"),
        ("https://2130706433/", "is a number"),
        ("https://017700000001/", "is a number"),
        ("https://0x7f000001/", "is a number"),
        ("https://0x7f.1/", "is a number"),
        ("https://127.1/", "is a number"),
        ("https://0177.0.0.1/", "is a number"),
        ("https://127.0.0.1./", "is a number"),
        ("https://8.8.8.8.8/", "is a number"),
        ("https://%31%32%37.0.0.1/", "no name has"),
        ("https://ex%00ample/", "no name has"),
        ("https://user@hooks.example/", "a user or a password"),
        ("https://user:secret@hooks.example/", "a user or a password"),
        ("https://hooks.example@127.0.0.1/", "a user or a password"),
        ("https://hooks.example:443@127.0.0.1/", "a user or a password"),
        ("https://hooks.example\\@127.0.0.1/", "characters that no URL has"),
        ("https://hooks.example /", "characters that no URL has"),
        ("https://hooks.example/\r\nHost: internal", "characters that no URL has"),
        ("https://h\u200books.example/", "characters that no URL has"),
        ("https://①②⑦.0.0.1/", "characters that no URL has"),
        ("https://hooks.example/#part", "fragment"),
        ("https://hooks.example:0/", "port 0"),
        ("https://hooks.example:70000/", "cannot be parsed"),
        ("https://hooks.example:http/", "cannot be parsed"),
        ("https:///path", "no host"),
        ("//hooks.example/", "its scheme is ''"),
        ("hooks.example", "its scheme is ''"),
        ("http://hooks.example/", "its scheme is 'http'"),
        ("file:///etc/passwd", "its scheme is 'file'"),
        ("gopher://hooks.example/", "its scheme is 'gopher'"),
        ("", "0 characters"),
        ("https://hooks.example/" + "x" * 2000, "allowed: 1 to 2000"),
    ],
)
def test_hostile_urls_are_rejected(url, problem):
    with pytest.raises(UnsafeUrlError, match=problem) as caught:
        Guard(resolve=resolver(PUBLIC)).check(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "localhost.", "LOCALHOST"])
def test_names_of_this_machine_are_rejected(host):
    with pytest.raises(
        UnsafeUrlError, match=r"port 8443\) (has an address that is not public|cannot be resolved)"
    ):
        Guard(resolve=system_resolve).check(f"https://{host}:8443/")


def test_numeric_hosts_are_rejected():
    """Without the rejection the system would resolve such numbers as addresses."""
    assert system_resolve("127.1", 443) == ["127.0.0.1"]


def test_an_error_does_not_reveal_the_address():
    with pytest.raises(UnsafeUrlError) as caught:
        Guard(resolve=resolver("10.9.8.7")).check("https://inside.example:8443/")
    assert "10.9.8.7" not in str(caught.value)
    assert "inside.example (port 8443)" in str(caught.value)


def test_a_valid_url_is_resolved_once():
    resolve = resolver(PUBLIC, "2606:4700::1")
    target = Guard(resolve=resolve).check("https://Hooks.Example:8443/a?b=c")
    assert (target.host, target.port) == ("hooks.example", 8443)
    assert target.addresses == (ip_address(PUBLIC), ip_address("2606:4700::1"))
    assert resolve.asked == [("hooks.example", 8443)]
    literal = Guard(resolve=resolver("10.0.0.1")).check("https://8.8.8.8/")
    assert literal.addresses == (ip_address(PUBLIC),)


def test_a_host_without_an_address_is_an_error():
    with pytest.raises(UnsafeUrlError, match="cannot be resolved"):
        Guard(resolve=resolver()).check("https://gone.example/")
    with pytest.raises(UnsafeUrlError, match="cannot be resolved"):
        Guard(resolve=system_resolve).check("https://a..b/")


def test_networks_are_read_from_the_settings():
    settings = BackgroundSettings(webhook_allowed_networks="10.1.0.0/16, fd00::/8")
    found = settings.webhook_allowed_networks
    assert found == (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
    for bad in ("10.1.2.3/16", "inside.example", "10.1.0.0/16;fd00::/8"):
        with pytest.raises(ValidationError, match=r"such as 10\.1\.2\.0/24"):
            BackgroundSettings(webhook_allowed_networks=bad)


def test_networks_allowed_by_the_operator_pass():
    guard = Guard(
        allowed=(ip_network("10.1.0.0/16"), ip_network("fd00::/8")),
        resolve=resolver("10.1.2.3", "fd00::1", "::ffff:10.1.2.3"),
    )
    assert len(guard.check("http://inside.example/").addresses) == 3
    public = Guard(allowed=guard._allowed, resolve=resolver(PUBLIC))
    assert public.check("https://outside.example/")
    with pytest.raises(UnsafeUrlError, match="is reached by http; allowed: https"):
        public.check("http://outside.example/")
    for other in ("10.2.0.1", "127.0.0.1", "::ffff:10.2.0.1", "fe80::1"):
        with pytest.raises(UnsafeUrlError, match="not public"):
            Guard(allowed=guard._allowed, resolve=resolver(other)).check("https://inside.example/")
