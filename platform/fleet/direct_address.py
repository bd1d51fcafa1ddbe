"""The address of a worker for another process, which resolves no names and sends plain HTTP."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit


@lru_cache(maxsize=4096)
def direct_address(url: str) -> str | None:
    """Return ``ip:port`` of a worker's URL, an IPv6 address in brackets; None if it has no such form."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.path or parts.username is not None or parts.hostname is None:
        return None
    try:
        address = ip_address(parts.hostname)
    except ValueError:
        return None
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"{host}:{parts.port or 80}"
