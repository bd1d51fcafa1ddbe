"""Resolves the address of a client from its connection and from the proxies that an operator trusts.

``X-Forwarded-For`` is believed only as far as trusted proxies wrote it: from the right, up to the first
address that is not one of theirs. Anybody can send the header, so that without ``trusted_proxies`` the
peer of the connection is the client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

Network = IPv4Network | IPv6Network
MAX_HOPS = 32
"""Entries of ``X-Forwarded-For`` that are looked at."""


def client_address(scope: Mapping[str, Any], trusted_proxies: Collection[Network]) -> str:
    """Return the address of the client of an ASGI scope; empty if the connection has none.

    An entry that is no address ends the search: the last trusted proxy then counts as the client.
    O(hops x trusted_proxies).
    """
    peer = scope.get("client")
    found = "" if not peer else str(peer[0])
    if not is_trusted(found, trusted_proxies):
        return found
    values = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    hops = b",".join(values).decode("latin-1").split(",") if values else []
    for hop in hops[: -MAX_HOPS - 1 : -1]:
        address = _address(hop)
        if address is None:
            return found
        found = str(address)
        if not is_trusted(found, trusted_proxies):
            return found
    return found


def is_trusted(address: str, trusted_proxies: Collection[Network]) -> bool:
    """Whether the address belongs to a trusted proxy."""
    if not trusted_proxies:
        return False
    parsed = _address(address)
    return parsed is not None and any(parsed in network for network in trusted_proxies)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in an entry such as ``10.0.0.1``, ``10.0.0.1:443`` or ``[fd00::1]:443``."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed = ip_address(text)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
