"""Items in rotation of their owners, such as tenants: a flood of one delays the others by one item.

Each owner has a queue of its own, and the owner that has waited longest is the next one. O(1).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Rotation(Generic[T]):
    """Queued items by owner. Not thread-safe."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        """The owner that is next is the first one."""

    def __len__(self) -> int:
        """Return the number of owners with items."""
        return len(self._queues)

    def __iter__(self) -> Iterator[str]:
        """Yield the owners with items, the next one first."""
        return iter(self._queues)

    def __contains__(self, owner: object) -> bool:
        return owner in self._queues

    def add(self, owner: str, item: T) -> None:
        """Queue an item of an owner, who is the last one if nothing of its own is queued."""
        self._queues.setdefault(owner, deque()).append(item)

    def pop(self, owner: str | None = None) -> T:
        """Remove and return the first item of an owner, by default of the next one.

        If the owner has more items, it is the last one now. Raises KeyError without an item.
        """
        if owner is None:
            owner, items = self._queues.popitem(last=False)
        else:
            items = self._queues.pop(owner)
        item = items.popleft()
        if items:
            self._queues[owner] = items
        return item
