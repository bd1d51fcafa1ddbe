"""A table whose entries are shared out between tenants: first in, first out, with a retention.

A tenant that is over its share loses its own oldest entry. A full table loses the oldest entry of the
tenant that has been quiet for longest. So a flood of one tenant costs no active tenant its entries.
Each operation is O(1), amortised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SharedTable(Generic[K, V]):
    """Values by tenant and key. Times do not decrease."""

    def __init__(self, entries: int, tenant_share: float) -> None:
        """``tenant_share`` is the share of ``entries`` that one tenant may have."""
        self._entries = entries
        self._of_tenant = max(1, int(entries * tenant_share))
        self._tenants: OrderedDict[str, OrderedDict[K, tuple[float, V]]] = OrderedDict()
        """The tenant of the latest entry is the last one; each has its oldest entry first."""
        self._size = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._size

    def get(self, tenant: str, key: K, now_s: float) -> V | None:
        """Return a value that has not expired."""
        own = self._tenants.get(tenant)
        found = None if own is None else own.get(key)
        return found[1] if found is not None and found[0] > now_s else None

    def put(self, tenant: str, key: K, value: V, until_s: float) -> None:
        """Add or replace a value, which expires at ``until_s``."""
        self.pop(tenant, key)
        own = self._tenants.setdefault(tenant, OrderedDict())
        own[key] = until_s, value
        self._tenants.move_to_end(tenant)
        self._size += 1
        if len(own) > self._of_tenant:
            self._drop_oldest(tenant)
        elif self._size > self._entries:
            self._drop_oldest(next(iter(self._tenants)))

    def pop(self, tenant: str, key: K) -> V | None:
        """Remove and return a value."""
        own = self._tenants.get(tenant)
        if own is None or key not in own:
            return None
        _, value = own.pop(key)
        self._forget(tenant, own)
        return value

    def expire(self, now_s: float) -> None:
        """Remove expired entries. O(tenants + removed)."""
        for tenant, own in list(self._tenants.items()):
            while own and next(iter(own.values()))[0] <= now_s:
                self._drop_oldest(tenant)

    def _drop_oldest(self, tenant: str) -> None:
        own = self._tenants[tenant]
        own.popitem(last=False)
        self._forget(tenant, own)

    def _forget(self, tenant: str, own: OrderedDict[K, tuple[float, V]]) -> None:
        self._size -= 1
        if not own:
            del self._tenants[tenant]

    def items(self) -> Iterator[tuple[str, K, float, V]]:
        """Yield tenant, key, expiry and value, so that putting them in this order restores the table
        up to the order of tenants.
        """
        for tenant, own in self._tenants.items():
            for key, (until_s, value) in own.items():
                yield tenant, key, until_s, value
