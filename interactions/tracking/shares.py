"""Entries of a bounded table by owner (tenant > app > user), and the one that leaves a full table.

A full table takes the entry to remove from whoever has most: from the tenant with the most entries,
there from the app with the most, there from the user with the most. A table that rejects counts the
arrival as an entry of its owner, and takes a place from somebody else only if that one has at least two
more, so that equals do not displace each other. The rule holds at each level: an arrival is rejected
only if its tenant has its share of the table, or its app its share of the tenant's entries, or its user
its share of the app's. With ``n`` siblings that have ``s`` entries together, a share is ``s // n``.

An entry has a rank, or is *fixed*: it counts, and is never removed. Of a user, entries of the lowest
rank go first. Each operation is O(log siblings) per level, amortised.

Weakness: shares are equal, whatever the weights. A tenant gains places with more apps or users only at
the cost of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K")

Owner = tuple[str, str, str]
"""Tenant, app and user."""
_SLACK = 8
"""Number of stale entries over the children at which a heap is rebuilt."""


class _User(Generic[K]):
    """The entries of one user."""

    __slots__ = ("entries", "free", "ranks")

    def __init__(self, ranks: int) -> None:
        self.entries = 0
        self.free = 0
        """Number of entries that may be removed."""
        self.ranks: tuple[dict[K, None], ...] = tuple({} for _ in range(ranks))
        """Removable entries by rank, the oldest first."""

    def remove(self, key: K) -> int:
        """Remove an entry from its rank; return 1, or 0 for a fixed one."""
        for keys in self.ranks:
            if key in keys:
                del keys[key]
                return 1
        return 0


class _Level(Generic[K]):
    """The whole table, a tenant, or an app."""

    __slots__ = ("_heap", "_sizes", "changed", "children", "entries", "free")

    def __init__(self) -> None:
        self.entries = 0
        self.free = 0
        self.children: dict[str, Any] = {}
        """Tenants, apps of a tenant, or users of an app, by name."""
        self.changed: set[str] = set()
        """Children that changed since their order was last asked for."""
        self._sizes: dict[str, int] = {}
        """Entries of the children that had removable ones then."""
        self._heap: list[tuple[int, str]] = []

    def remove(self, name: str) -> None:
        """Remove a child without entries."""
        del self.children[name]
        self.changed.discard(name)
        self._sizes.pop(name, None)

    def largest(self) -> str | None:
        """Return the child with the most entries of those with removable ones, by name if equal.

        O(log children) per change of a child since the last time.
        """
        sizes, heap = self._sizes, self._heap
        for name in self.changed:
            child = self.children[name]
            if not child.free:
                sizes.pop(name, None)
            elif sizes.get(name) != child.entries:
                sizes[name] = child.entries
                heappush(heap, (-child.entries, name))
        self.changed.clear()
        if len(heap) > 2 * len(sizes) + _SLACK:
            heap[:] = [(-size, each) for each, size in sizes.items()]
            heapify(heap)
        while heap and sizes.get(heap[0][1]) != -heap[0][0]:
            heappop(heap)
        return heap[0][1] if heap else None


_Path = tuple[_Level[K], _Level[K], _User[K]]
"""A tenant, its app, and the app's user."""


class Shares(Generic[K]):
    """The owners of a table's entries. The caller keeps the entries and the bound."""

    def __init__(self, ranks: int = 1, *, newest_first: bool = False) -> None:
        """With ``newest_first`` a user's newest entry leaves first, else the oldest."""
        self._ranks = ranks
        self._newest_first = newest_first
        self._table: _Level[K] = _Level()

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._table.entries

    def count(self, of: Sequence[str]) -> int:
        """Return the entries of a tenant, of one of its apps, or of a user of that app."""
        part: Any = self._table
        for name in of:
            part = part.children.get(name)
            if part is None:
                return 0
        entries: int = part.entries
        return entries

    def enter(self, owner: Owner, key: K, rank: int | None = 0) -> None:
        """Add an entry as its user's newest; without a rank it is fixed."""
        tenant, app, user = owner
        of_tenant: _Level[K] | None = self._table.children.get(tenant)
        if of_tenant is None:
            of_tenant = self._table.children[tenant] = _Level()
        of_app: _Level[K] | None = of_tenant.children.get(app)
        if of_app is None:
            of_app = of_tenant.children[app] = _Level()
        of_user: _User[K] | None = of_app.children.get(user)
        if of_user is None:
            of_user = of_app.children[user] = _User(self._ranks)
        if rank is not None:
            of_user.ranks[rank][key] = None
        self._add(owner, (of_tenant, of_app, of_user), 1, rank is not None)

    def leave(self, owner: Owner, key: K) -> None:
        """Remove an entry. Raises KeyError for an owner without entries."""
        path = self._path(owner)
        self._add(owner, path, -1, -path[2].remove(key))
        for level, name, part in (
            (path[1], owner[2], path[2]),
            (path[0], owner[1], path[1]),
            (self._table, owner[0], path[0]),
        ):
            if part.entries:
                return
            level.remove(name)

    def change(self, owner: Owner, key: K, rank: int | None) -> None:
        """Change the rank of an entry; it becomes its user's newest."""
        path = self._path(owner)
        free = -path[2].remove(key)
        if rank is not None:
            path[2].ranks[rank][key] = None
            free += 1
        if free:
            self._add(owner, path, 0, free)

    def _path(self, owner: Owner) -> _Path[K]:
        of_tenant = self._table.children[owner[0]]
        of_app = of_tenant.children[owner[1]]
        return of_tenant, of_app, of_app.children[owner[2]]

    def _add(self, owner: Owner, path: _Path[K], entries: int, free: int) -> None:
        """Add to the numbers of entries, and of removable ones, on the path of an owner."""
        table, (of_tenant, of_app, of_user) = self._table, path
        table.entries += entries
        table.free += free
        table.changed.add(owner[0])
        of_tenant.entries += entries
        of_tenant.free += free
        of_tenant.changed.add(owner[1])
        of_app.entries += entries
        of_app.free += free
        of_app.changed.add(owner[2])
        of_user.entries += entries
        of_user.free += free

    # --- the entry that leaves --------------------------------------------------------------------

    def most(self) -> K | None:
        """Return the entry that leaves first; None if there is no removable one."""
        return self._of_largest(self._table)

    def displaced_by(self, owner: Owner, rank: int, within: Sequence[str] = ()) -> K | None:
        """Return the entry that leaves for one more of ``owner``; None if this one has no place.

        ``within`` is the part that is full: the table (empty), or the owner's tenant, app or user. An
        arrival displaces an entry of its own user only if that has a lower rank.
        """
        part: Any = self._table
        for name in within:
            part = part.children[name]
        for name in owner[len(within) :]:
            own = part.children.get(name)
            size = 0 if own is None else own.entries
            largest = part.largest()
            if largest is not None and largest != name:
                other = part.children[largest]
                if other.entries > size + 1:
                    return self._of_largest(other)
            if own is None:
                return None
            part = own
        return self._first(part, rank)

    def _of_largest(self, part: _Level[K] | _User[K]) -> K | None:
        while isinstance(part, _Level):
            name = part.largest()
            if name is None:
                return None
            part = part.children[name]
        return self._first(part, self._ranks)

    def _first(self, user: _User[K], below: int) -> K | None:
        """Return the user's entry that leaves first, of a rank under ``below``."""
        for keys in user.ranks[:below]:
            if keys:
                return next(reversed(keys)) if self._newest_first else next(iter(keys))
        return None
