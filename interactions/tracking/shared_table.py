"""A table shared by all owners of entries, with a bound: a full one loses an entry of whoever has most.

The oldest entry leaves of whoever has most, by tenant, app and user, or by tenant only
(:class:`~fairserve.interactions.tracking.shares.Shares`). So a flood costs nobody an entry who has no
more than his share, and one owner alone may have the whole table. Entries may expire. Each operation is
O(log siblings), amortised.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from fairserve.interactions.tracking.shares import Owner, Shares

K = TypeVar("K")
V = TypeVar("V")


def tick_share(entries: int) -> int:
    """Return how many of a table's entries one tick visits, so that none takes long: a 64th.

    At least 256, so that small tables are visited as a whole. An idle entry is gone after about a
    minute, and a table whose entries are used once has 64 times what arrives between two ticks.
    """
    return min(entries, max(256, entries // 64))


class _Entry(NamedTuple):
    until_s: float
    owner: Owner
    value: Any
    rank: int


class SharedTable(Generic[K, V]):
    """Values by key, each of an owner. Times do not decrease, and all entries live equally long."""

    def __init__(self, limit: int) -> None:
        """``limit`` bounds the sum of the entries' sizes, which are 1 by default."""
        self.limit = limit
        self._entries: OrderedDict[K, _Entry] = OrderedDict()
        """Entries in the order in which they were added, and expire."""
        self._shares: Shares[K] = Shares(2)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    @property
    def used(self) -> int:
        """Return the sum of the entries' sizes."""
        return self._shares.size

    def get(self, key: K, now_s: float = 0.0) -> V | None:
        """Return a value that has not expired."""
        found = self._entries.get(key)
        return found[2] if found is not None and found[0] > now_s else None

    def touch(self, key: K) -> None:
        """Make an entry, if present, the last of its owner's that leaves a full table."""
        entry = self._entries.get(key)
        if entry is not None:
            self._shares.change(key, entry.rank)

    def put(
        self,
        owner: Owner,
        key: K,
        value: V,
        until_s: float = math.inf,
        *,
        kept: bool = True,
        size: int = 1,
    ) -> list[V]:
        """Add or replace a value, which expires at ``until_s``; return the values that left for it.

        An owner's entries that are not ``kept`` leave first. Of equals, the owner that adds an entry
        loses its own. An entry larger than the table is not added, but returned.
        """
        if key in self._entries:
            self.pop(key)
        if size > self.limit:
            return [value]
        self._entries[key] = _Entry(until_s, owner, value, int(kept))
        self._shares.enter(owner, key, int(kept), size)
        gone = []
        while self._shares.size > self.limit:
            leaving = self._shares.most(owner)
            assert leaving is not None, "every entry may be removed"
            gone.append(self._entries.pop(leaving).value)
            self._shares.leave(leaving)
        return gone

    def pop(self, key: K) -> V | None:
        """Remove and return a value, expired or not."""
        found = self._entries.pop(key, None)
        if found is None:
            return None
        self._shares.leave(key)
        value: V = found.value
        return value

    def expire(self, now_s: float) -> None:
        """Remove expired entries, at most a share at a time: nothing reads those that remain."""
        for _ in range(tick_share(len(self._entries))):
            key, entry = next(iter(self._entries.items()))
            if entry.until_s > now_s:
                return
            self.pop(key)

    def items(self) -> Iterator[tuple[Owner, K, float, V]]:
        """Yield owner, key, expiry and value; putting them in this order restores the table."""
        for key, (until_s, owner, value, _) in self._entries.items():
            yield owner, key, until_s, value

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, plain: Callable[[K, V], Any]) -> list[list[Any]]:
        """Return the table as plain JSON values, with what ``plain`` makes of each key and value."""
        places = {key: (place, size) for place, (key, _, size) in enumerate(self._shares.items())}
        return [
            [
                list(owner),
                None if math.isinf(until_s) else until_s,
                rank,
                *places[key],
                plain(key, value),
            ]
            for key, (until_s, owner, value, rank) in self._entries.items()
        ]

    def restore(self, state: Sequence[Sequence[Any]], made: Callable[[Any], tuple[K, V]]) -> None:
        """Replace the entries by those of an earlier snapshot; ``made`` is the inverse of ``plain``."""
        self._entries.clear()
        self._shares = Shares(2)
        entered = []
        for owner, until_s, rank, place, size, plain in state:
            key, value = made(plain)
            entry = _Entry(math.inf if until_s is None else until_s, tuple(owner), value, rank)
            self._entries[key] = entry
            entered.append((place, entry.owner, key, rank, size))
        for _, owner, key, rank, size in sorted(entered, key=lambda each: each[0]):
            self._shares.enter(owner, key, rank, size)
