"""A table shared by all owners of entries: first in, first out, with a retention.

A full table loses the oldest entry of whoever has most, by tenant, app and user
(:class:`~fairserve.interactions.tracking.shares.Shares`). So a flood costs nobody an entry who has no
more than his share. Each operation is O(log siblings), amortised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from fairserve.interactions.tracking.shares import Owner, Shares

K = TypeVar("K")
V = TypeVar("V")


def tick_share(entries: int) -> int:
    """Return how many of some entries a tick may remove, so that none takes long."""
    return max(256, entries // 64)


class SharedTable(Generic[K, V]):
    """Values by key, each of an owner. Times do not decrease, and all entries live equally long."""

    def __init__(self, entries: int) -> None:
        """``entries`` is the maximum number of entries."""
        self._most = entries
        self._entries: OrderedDict[K, tuple[float, Owner, V]] = OrderedDict()
        """Expiry, owner and value by key, the oldest first."""
        self._shares: Shares[K] = Shares(2)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def get(self, key: K, now_s: float) -> V | None:
        """Return a value that has not expired."""
        found = self._entries.get(key)
        return found[2] if found is not None and found[0] > now_s else None

    def put(self, owner: Owner, key: K, value: V, until_s: float, *, kept: bool = True) -> None:
        """Add or replace a value, which expires at ``until_s``.

        A user's entries that are not ``kept`` leave a full table first.
        """
        self.pop(key)
        self._entries[key] = until_s, owner, value
        self._shares.enter(owner, key, int(kept))
        if len(self._entries) > self._most:
            removed = self._shares.most()
            assert removed is not None, "every entry may be removed"
            self.pop(removed)

    def pop(self, key: K) -> V | None:
        """Remove and return a value."""
        found = self._entries.pop(key, None)
        if found is None:
            return None
        _, owner, value = found
        self._shares.leave(owner, key)
        return value

    def expire(self, now_s: float) -> None:
        """Remove expired entries, at most a share at a time: nothing reads those that remain."""
        for _ in range(tick_share(len(self._entries))):
            if not self._entries:
                return
            key, (until_s, _, _) = next(iter(self._entries.items()))
            if until_s > now_s:
                return
            self.pop(key)

    def items(self) -> Iterator[tuple[Owner, K, float, V]]:
        """Yield owner, key, expiry and value; putting them in this order restores the table."""
        for key, (until_s, owner, value) in self._entries.items():
            yield owner, key, until_s, value
