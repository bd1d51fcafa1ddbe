"""Determine the client's address and scheme; only trusted proxies may report them.

A proxy appends the address of its peer to ``X-Forwarded-For``, and a client may send any list of its
own. The list is therefore used only if the connection comes from a trusted proxy, and is read from its
end: the first address that is not a trusted proxy is the client.

Weakness: a trusted proxy that forwards the header unchanged lets its clients choose their address.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAX_ADDRESS_CHARS = 80
"""No address is longer, and a client may send any text."""
IPV6_BLOCK_BITS = 64
"""Length of the IPv6 prefix that one subscriber usually has."""


def parse_networks(texts: Collection[str]) -> tuple[Network, ...]:
    """Parse addresses and CIDR networks. Raises ValueError for any other text."""
    try:
        return tuple(ip_network(text.strip()) for text in texts)
    except ValueError:
        raise ValueError(
            "each must be an address or a CIDR network without host bits, such as 10.0.0.0/8"
        ) from None


def client_address(scope: Mapping[str, Any], trusted_proxies: Collection[Network]) -> str:
    """Return the address of the client; empty if the connection has none (a Unix socket)."""
    return client_of(scope, trusted_proxies)[0]


def client_of(scope: Mapping[str, Any], trusted_proxies: Collection[Network]) -> tuple[str, bool]:
    """Return the address of the client, and whether a trusted proxy sent the request."""
    peer = (scope.get("client") or ("",))[0]
    address = _parsed(peer)
    if address is None or not _is_trusted(address, trusted_proxies):
        return peer if address is None else str(address), False
    for text in reversed(_values(scope, b"x-forwarded-for")):
        hop = _parsed(_without_port(text))
        if hop is None:
            break
        address = hop
        if not _is_trusted(address, trusted_proxies):
            break
    return str(address), True


def is_trusted(address: str, trusted_proxies: Collection[Network]) -> bool:
    """Return whether the address is a trusted proxy; False if the text is not an address."""
    parsed = _parsed(address)
    return parsed is not None and _is_trusted(parsed, trusted_proxies)


def client_scheme(scope: Mapping[str, Any], trusted_proxies: Collection[Network]) -> str:
    """Return the scheme that the client used: ``https`` if a trusted proxy reports it."""
    peer = _parsed((scope.get("client") or ("",))[0])
    if peer is not None and _is_trusted(peer, trusted_proxies):
        values = _values(scope, b"x-forwarded-proto")
        if values and values[-1].lower() in ("http", "https"):
            return values[-1].lower()
    return str(scope.get("scheme", "http"))


def address_block(address: str) -> str:
    """Return the unit that counts as one client: an IPv4 address, or the /64 of an IPv6 address."""
    parsed = _parsed(address)
    if not isinstance(parsed, IPv6Address):
        return address
    return str(IPv6Network((int(parsed), IPV6_BLOCK_BITS), strict=False))  # drops the host bits


def _values(scope: Mapping[str, Any], name: bytes) -> list[str]:
    """Return the comma-separated values of a header in order, over all its lines."""
    lines = (value.decode("latin-1") for key, value in scope["headers"] if key == name)
    return [part.strip() for line in lines for part in line.split(",")]


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _parsed(text: str) -> Address | None:
    """Return the address, or None if the text is not one. IPv4-mapped IPv6 addresses become IPv4."""
    return None if len(text) > _MAX_ADDRESS_CHARS else _parsed_short(text)


@lru_cache(maxsize=4096)
def _parsed_short(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_trusted(address: Address, trusted_proxies: Collection[Network]) -> bool:
    # Without a generator: as a rule there are no proxies, and each request asks.
    for network in trusted_proxies:  # noqa: SIM110
        if address in network:
            return True
    return False
