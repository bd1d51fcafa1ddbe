"""Open connections, counted in total and by client address; those over a limit are rejected.

A connection counts for its peer as long as it is open. Trusted proxies carry many clients on their
connections: a proxy itself is limited by the total only, and each of its requests counts for the client
that it names. An IPv6 client is a /64 network, because one host usually owns all of it.

Weakness: clients behind one address (a company's NAT) share its limit; when strangers from very many
addresses fill the total, health checks are rejected, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from ipaddress import IPv6Address, IPv6Network, ip_address

from fairserve.platform.base.client_address import Network, is_trusted
from fairserve.platform.base.errors import FairServeError, RateLimitedError, UnavailableError

CODE = "too_many_connections"
RETRY_S = "1"
IPV6_PREFIX = 64


class Connections:
    """Counts of one server. Belongs to its event loop; O(1) for each connection."""

    def __init__(
        self, total: int, per_address: int, trusted_proxies: Collection[Network] = ()
    ) -> None:
        self.total, self.per_address = total, per_address
        self.trusted_proxies = tuple(trusted_proxies)
        self.open = 0
        self.closing = False
        """True once each connection ends with the answer to its next request."""
        self._by_client: Counter[str] = Counter()

    def connect(self, peer: str) -> FairServeError | None:
        """Count a new connection, or return the error that rejects it; then it is not counted."""
        if self.open >= self.total:
            return UnavailableError(
                f"the server has {self.open} open connections; allowed: {self.total}"
                " (max_connections). Retry later",
                code=CODE,
                headers={"Retry-After": RETRY_S},
            )
        rejected = None if is_trusted(peer, self.trusted_proxies) else self.begin(peer)
        if rejected is None:
            self.open += 1
        return rejected

    def disconnect(self, peer: str) -> None:
        """Stop counting a closed connection."""
        self.open -= 1
        if not is_trusted(peer, self.trusted_proxies):
            self.end(peer)

    def begin(self, client: str) -> FairServeError | None:
        """Count a connection or a proxied request of a client, or return the error that rejects it."""
        key = _key(client)
        if self._by_client[key] >= self.per_address:
            return RateLimitedError(
                f"this address has {self.per_address} open connections; allowed:"
                f" {self.per_address} (max_connections_per_address). Reuse or close some",
                code=CODE,
                headers={"Retry-After": RETRY_S},
            )
        self._by_client[key] += 1
        return None

    def end(self, client: str) -> None:
        """Stop counting a connection or request that :meth:`begin` counted."""
        key = _key(client)
        self._by_client[key] -= 1
        if not self._by_client[key]:
            del self._by_client[key]


def _key(client: str) -> str:
    try:
        address = ip_address(client)
    except ValueError:
        return client
    if not isinstance(address, IPv6Address):
        return client
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), IPV6_PREFIX), strict=False))
