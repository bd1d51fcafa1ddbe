"""Entries of a bounded table by owner (tenant > app > user), and the one that leaves a full table.

A full table takes the entry to remove from whoever has most: from the tenant with the most entries,
there from the app with the most, there from the user with the most. A table that rejects counts the
arrival as an entry of its owner, and takes a place from somebody else only if that one has at least two
more, so that equals do not displace each other. The rule holds at each level: an arrival is rejected
only if its tenant has its share of the table, or its app its share of the tenant's entries, or its user
its share of the app's. With ``n`` siblings that have ``s`` entries together, a share is ``s // n``.
The owners of a table may have fewer levels, such as the tenant only.

An entry has a rank, or is *fixed*: it counts, and is never removed. Of a user, entries of the lowest
rank go first. The numbers of the owners are kept from the first question until half of the entries have
left: most tables are not full. Each operation is O(log siblings) per level then, amortised, and O(1)
before.

Weakness: shares are equal, whatever the weights. A tenant gains places with more apps or users only at
the cost of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from fairserve.interactions.lazy_heap import LazyHeap

K = TypeVar("K")

Owner = tuple[str, ...]
"""Tenant, app and user; of some tables the tenant only."""


class _User(Generic[K]):
    """The entries of one owner."""

    __slots__ = ("entries", "levels", "ranks")

    def __init__(self, levels: tuple[_Level[K], ...], ranks: int) -> None:
        self.entries = 0
        self.levels = levels
        """The table, the tenant and the app."""
        self.ranks: tuple[dict[K, None], ...] = tuple([{} for _ in range(ranks)])
        """Removable entries by rank, the oldest first."""

    def settle(self) -> bool:
        """Return whether an entry may be removed."""
        return any(self.ranks)


class _Level(Generic[K]):
    """The whole table, a tenant, or an app."""

    __slots__ = ("changed", "children", "entries", "order")

    def __init__(self) -> None:
        self.entries = 0
        self.children: dict[str, Any] = {}
        """Tenants, apps of a tenant, or users of an app, by name."""
        self.order: LazyHeap[str] = LazyHeap()
        """Children that have removable entries, the one with most entries first."""
        self.changed: set[str] = set()
        """Children that changed since the order was last asked for."""

    def remove(self, name: str) -> None:
        """Remove a child without entries."""
        del self.children[name]
        self.order.discard(name)
        self.changed.discard(name)

    def settle(self) -> bool:
        """Update the order; return whether an entry may be removed. O(log children) per change."""
        for name in self.changed:
            child = self.children[name]
            if child.settle():
                self.order.set(name, (-child.entries, name))
            else:
                self.order.discard(name)
        self.changed.clear()
        return bool(self.order)

    def largest(self) -> str | None:
        """Return the child with the most entries of those with removable ones, by name if equal."""
        return self.order.first()[1] if self.settle() else None


class _Tree(Generic[K]):
    """The numbers of all owners."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.table: _Level[K] = _Level()
        self._users: dict[Owner, _User[K]] = {}

    def enter(self, owner: Owner, key: K, rank: int | None, size: int) -> None:
        user = self._users.get(owner)
        if user is None:
            user = self._users[owner] = self._new(owner)
        if rank is not None:
            user.ranks[rank][key] = None
        _add(owner, user, size)

    def _new(self, owner: Owner) -> _User[K]:
        levels = [self.table]
        for name in owner[:-1]:
            above = levels[-1].children
            level = above.get(name)
            if level is None:
                level = above[name] = _Level()
            levels.append(level)
        user: _User[K] = _User(tuple(levels), self._ranks)
        levels[-1].children[owner[-1]] = user
        return user

    def leave(self, owner: Owner, key: K, rank: int | None, size: int) -> None:
        user = self._users[owner]
        if rank is not None:
            del user.ranks[rank][key]
        _add(owner, user, -size)
        if user.entries:
            return
        del self._users[owner]
        for level, name in zip(reversed(user.levels), reversed(owner), strict=True):
            level.remove(name)
            if level.entries:
                return


def _add(owner: Owner, user: _User[Any], size: int) -> None:
    """Add to the numbers of entries on the path of an owner."""
    user.entries += size
    for level, name in zip(user.levels, owner, strict=True):
        level.entries += size
        level.changed.add(name)


class Shares(Generic[K]):
    """The owners of a table's entries. The caller keeps the entries and the bound."""

    def __init__(self, ranks: int = 1, *, newest_first: bool = False) -> None:
        """With ``newest_first`` a user's newest entry leaves first, else the oldest."""
        self._ranks = ranks
        self._newest_first = newest_first
        self._entries: dict[K, tuple[Owner, int | None, int]] = {}
        """Owner, rank and size of each entry, the oldest first."""
        self._tree: _Tree[K] | None = None
        self._keep_from = 0
        """Number of entries below which the tree is dropped."""
        self.size = 0
        """Sum of the entries' sizes."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def items(self) -> Iterator[tuple[K, int | None, int]]:
        """Yield key, rank and size of the entries in order; entering them so restores the table."""
        for key, (_, rank, size) in self._entries.items():
            yield key, rank, size

    def enter(self, owner: Owner, key: K, rank: int | None = 0, size: int = 1) -> None:
        """Add an entry as its user's newest; without a rank it is fixed."""
        self._entries[key] = owner, rank, size
        self.size += size
        if self._tree is not None:
            self._tree.enter(owner, key, rank, size)

    def leave(self, key: K) -> None:
        """Remove an entry. Raises KeyError for an unknown one."""
        owner, rank, size = self._entries.pop(key)
        self.size -= size
        if self._tree is not None:
            self._tree.leave(owner, key, rank, size)
            if len(self._entries) < self._keep_from:
                self._tree = None

    def change(self, key: K, rank: int | None) -> None:
        """Change the rank of an entry; it becomes its user's newest."""
        owner, _, size = self._entries[key]
        self.leave(key)
        self.enter(owner, key, rank, size)

    def count(self, of: Sequence[str]) -> int:
        """Return the entries of a tenant, of one of its apps, or of a user of that app."""
        part: Any = self._table()
        for name in of:
            part = part.children.get(name)
            if part is None:
                return 0
        entries: int = part.entries
        return entries

    def _table(self) -> _Level[K]:
        """Return the table with the numbers of all owners."""
        if self._tree is None:
            self._tree = _Tree(self._ranks)
            for key, (owner, rank, size) in self._entries.items():
                self._tree.enter(owner, key, rank, size)
            self._keep_from = len(self._entries) // 2
        return self._tree.table

    # --- the entry that leaves --------------------------------------------------------------------

    def most(self, adding: Owner) -> K | None:
        """Return the entry that leaves a table with one too many; None if there is no removable one.

        Of equals, the owner that adds an entry loses its own.
        """
        part: Any = self._table()
        own = True
        for name in adding:
            largest = part.largest()
            if largest is None:
                return None
            children = part.children
            own = own and name in part.order and children[name].entries >= children[largest].entries
            part = children[name if own else largest]
        return self._first(part, self._ranks)

    def displaced_by(self, owner: Owner, rank: int, within: Sequence[str] = ()) -> K | None:
        """Return the entry that leaves for one more of ``owner``; None if this one has no place.

        ``within`` is the part that is full: the table (empty), or the owner's tenant, app or user. An
        arrival displaces an entry of its own user only if that has a lower rank.
        """
        part: Any = self._table()
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
