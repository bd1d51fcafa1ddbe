"""Guard against requests to internal hosts: webhooks go to public addresses and to allowed networks.

A tenant chooses the URL and the server sends the request, which could otherwise reach hosts of the
server's network (SSRF). The URL is parsed by the library that sends the request, the host is resolved
here, all its addresses must be allowed, and the connection uses exactly the checked addresses, so that
a changed DNS answer (DNS rebinding) has no effect. The check runs when an endpoint is set and at each
attempt.

Weakness: a public address may belong to the operator's own gateway; only a firewall can protect it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import TypeAlias

from yarl import URL

from fairserve.platform.db.webhooks import URL_CHARS

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host for a port. Blocks. Raises OSError if there are none."""

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: tuple[Network, ...] = (
    # Networks that are missing from the lists of special networks of some Python versions.
    IPv4Network("192.88.99.0/24"),
    IPv6Network("3fff::/20"),
)
_PRINTABLE = re.compile(r"[!-\[\]-~]+")
"""ASCII without space and backslash, which libraries parse differently."""
_NAME = re.compile(r"[\w.-]+", re.ASCII)
_ENDS_IN_NUMBER = re.compile(r"(.*\.)?(0[xX][0-9a-fA-F]*|[0-9]+)\.?")
"""Hosts that some libraries parse as IPv4 addresses: decimal, octal, hexadecimal, shortened."""


class UnsafeUrlError(ValueError):
    """The URL is not allowed; the message names the problem and the allowed values."""


@dataclass(frozen=True, slots=True)
class Target:
    """An allowed URL with its checked addresses."""

    url: URL
    host: str
    port: int
    addresses: tuple[Address, ...]


def system_resolve(host: str, port: int) -> list[str]:
    """Return the addresses from the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Guard:
    """Checks URLs. ``allowed`` are networks that need not be public, and where http is allowed."""

    def __init__(
        self,
        *,
        allowed: Sequence[Network] = (),
        resolve: Resolve = system_resolve,
    ) -> None:
        self._schemes = ("https", "http") if allowed else ("https",)
        self._allowed = tuple(allowed)
        self._resolve = resolve

    def check(self, text: str) -> Target:
        """Return the target of a URL. Blocks during the DNS lookup. Raises UnsafeUrlError."""
        url, host, port = self._parts(text)
        addresses = self._addresses(host, port)
        if not addresses:
            raise UnsafeUrlError(f"{host} (port {port}) cannot be resolved")
        if not all(self._may_be_sent_to(address) for address in addresses):
            # The message does not contain the address, which would reveal internal DNS records.
            raise UnsafeUrlError(
                f"{host} (port {port}) has an address that is not public; allowed: hosts with public"
                " addresses only, and networks that the operator allows"
            )
        if url.scheme == "http" and not all(map(self._is_allowed, addresses)):
            raise UnsafeUrlError(
                f"{host} (port {port}) is reached by http; allowed: https, and http within the networks"
                " that the operator allows"
            )
        return Target(url, host, port, addresses)

    def _addresses(self, host: str, port: int) -> tuple[Address, ...]:
        try:
            return (ip_address(host),)
        except ValueError:
            pass
        try:
            return tuple(ip_address(each) for each in self._resolve(host, port))
        except (OSError, ValueError):
            return ()

    def _parts(self, text: str) -> tuple[URL, str, int]:
        allowed = " or ".join(f"{scheme}://HOST[:PORT]/PATH" for scheme in self._schemes)
        if not 0 < len(text) <= URL_CHARS:
            raise UnsafeUrlError(f"it has {len(text)} characters; allowed: 1 to {URL_CHARS}")
        if not _PRINTABLE.fullmatch(text):
            raise UnsafeUrlError(
                "it has characters that no URL has; escape them, and write names in ASCII (xn--...)"
            )
        try:
            url = URL(text)
            scheme, host, port = url.scheme, url.host, url.port
        except ValueError:
            raise UnsafeUrlError(f"it cannot be parsed; allowed: {allowed}") from None
        if scheme not in self._schemes:
            raise UnsafeUrlError(f"its scheme is {scheme!r}; allowed: {allowed}")
        if "@" in url.raw_authority:
            raise UnsafeUrlError(f"it has a user or a password; allowed: {allowed}")
        if url.raw_fragment or "#" in text:
            raise UnsafeUrlError(f"it has a fragment (#), which is not sent; allowed: {allowed}")
        if not host or not port:
            raise UnsafeUrlError(f"it has no host, or port 0; allowed: {allowed}")
        if not _NAME.fullmatch(host) and (":" not in host or "%" in host):
            raise UnsafeUrlError(
                f"its host {host} (port {port}) has characters that no name has; allowed: letters,"
                " digits, dots and hyphens, or an IPv6 address in brackets"
            )
        if _ENDS_IN_NUMBER.fullmatch(host) and not _is_ipv4(host):
            raise UnsafeUrlError(
                f"the host {host} (port {port}) is a number; allowed: a name, or an IPv4 address as four"
                " decimal numbers"
            )
        return url, host, port

    def _may_be_sent_to(self, address: Address) -> bool:
        return self._is_allowed(address) or is_public(address)

    def _is_allowed(self, address: Address) -> bool:
        return any(
            each.version == network.version and each in network
            for each in (address, *_within(address))
            for network in self._allowed
        )


def is_public(address: Address) -> bool:
    """Return whether an address is public, including the IPv4 addresses that it embeds."""
    inner = _within(address)
    if inner:
        return all(is_public(each) for each in inner)
    if isinstance(address, IPv6Address) and (
        address.scope_id is not None or address not in _GLOBAL_UNICAST
    ):
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(
            address in network for network in _NOT_PUBLIC if network.version == address.version
        )
    )


def _within(address: Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that an IPv6 address embeds: mapped, 6to4, Teredo, NAT64."""
    if isinstance(address, IPv4Address):
        return ()
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in _NAT64:
        return (IPv4Address(int(address) & 0xFFFFFFFF),)
    return ()


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True
