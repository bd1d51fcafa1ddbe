"""A bounded table of tenants' entries: a full one evicts the oldest entry of the tenant that has most.

So nobody's flood costs a tenant an entry that has no more than its share, whatever the number of
tenants; alone, a tenant may have the whole table. Of equals, the one that adds an entry loses its own.
Each operation is O(log tenants), amortised.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_SLACK = 64
"""Number of stale entries over the tenants at which the heap is rebuilt."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[V]):
    tenant: str
    value: V
    size: int
    until_s: float


class TenantTable(Generic[K, V]):
    """Values by key, each of a tenant. Not thread-safe. Times do not decrease."""

    def __init__(self, limit: int, retention_s: float = math.inf) -> None:
        """``limit`` bounds the sum of the entries' sizes, which are 1 by default."""
        self.limit = limit
        self._retention_s = retention_s
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        """Entries in the order in which they were added, and expire."""
        self._of: dict[str, OrderedDict[K, None]] = {}
        """Keys by tenant, the first to be evicted first."""
        self._sizes: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self.used = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def get(self, key: K, now_s: float = 0.0) -> V | None:
        """Return a value that has not expired."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and entry.until_s > now_s else None

    def touch(self, key: K) -> None:
        """Make an entry the last of its tenant's that is evicted."""
        self._of[self._entries[key].tenant].move_to_end(key)

    def put(self, tenant: str, key: K, value: V, now_s: float = 0.0, size: int = 1) -> list[V]:
        """Add or replace an entry; return the values that were evicted, or have expired.

        An entry larger than the table is not added, but returned.
        """
        self.pop(key)
        gone = self.expire(now_s)
        if size > self.limit:
            return [*gone, value]
        self._entries[key] = _Entry(tenant, value, size, now_s + self._retention_s)
        self._of.setdefault(tenant, OrderedDict())[key] = None
        self._resize(tenant, size)
        while self.used > self.limit:
            evicted = self.pop(next(iter(self._of[self._largest(tenant)])))
            assert evicted is not None, "a tenant in the table has entries"
            gone.append(evicted)
        return gone

    def pop(self, key: K) -> V | None:
        """Remove and return a value, expired or not."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        own = self._of[entry.tenant]
        del own[key]
        if not own:
            del self._of[entry.tenant]
        self._resize(entry.tenant, -entry.size)
        return entry.value

    def expire(self, now_s: float) -> list[V]:
        """Remove expired entries and return their values. O(removed)."""
        gone = []
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.until_s > now_s:
                break
            self.pop(key)
            gone.append(entry.value)
        return gone

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield keys and values, the first added first."""
        for key, entry in self._entries.items():
            yield key, entry.value

    def clear(self) -> list[V]:
        """Remove all entries and return their values."""
        values = [value for _, value in self.items()]
        self._entries.clear()
        self._of.clear()
        self._sizes.clear()
        self._heap.clear()
        self.used = 0
        return values

    def _resize(self, tenant: str, by: int) -> None:
        self.used += by
        size = self._sizes.get(tenant, 0) + by
        if size:
            self._sizes[tenant] = size
            heappush(self._heap, (-size, tenant))
        else:
            del self._sizes[tenant]
        if len(self._heap) > 2 * len(self._sizes) + _SLACK:
            self._heap = [(-size, each) for each, size in self._sizes.items()]
            heapify(self._heap)

    def _largest(self, adding: str) -> str:
        """Return the tenant with most; ``adding`` if no other has more."""
        while self._sizes.get(self._heap[0][1]) != -self._heap[0][0]:
            heappop(self._heap)
        size, tenant = self._heap[0]
        return adding if self._sizes.get(adding, 0) >= -size else tenant
