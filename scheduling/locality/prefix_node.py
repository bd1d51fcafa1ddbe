"""Nodes of the prefix tree, and the order in which each worker used its nodes.

Every node has a link in the list of each of its holders. A list is in the order of use, and a path
is used from its leaf to its root, so parents are more recent than their children: the oldest link
is a leaf of that worker. The links form the list without another container, because splitting a
node inserts its second half directly beside it in the lists of all its holders.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class Link:
    """A node in the recency list of one of its holders."""

    __slots__ = ("locks", "newer", "node", "older")

    def __init__(self, node: PrefixNode) -> None:
        self.node = node
        self.locks = 0
        """Number of running calls of this worker whose path contains the node."""
        self.older: Link = self
        self.newer: Link = self

    def unlink(self) -> None:
        """Remove the link from its list."""
        self.older.newer = self.newer
        self.newer.older = self.older

    def insert_before(self, newer: Link) -> None:
        """Insert the link into the list of ``newer``, as the next older one."""
        older = newer.older
        self.older, self.newer = older, newer
        older.newer = newer.older = self


class PrefixNode:
    """A run of blocks, read-only except for the ``locks``, which the tree sets."""

    __slots__ = ("children", "keys", "links", "mask", "parent", "start")

    def __init__(self, parent: PrefixNode | None, start: int, keys: array[int]) -> None:
        self.parent = parent
        """Parent node; None for the root, which has no keys."""
        self.start = start
        """Number of blocks before this node on its path."""
        self.keys = keys
        self.mask = 0
        """Mask of the workers that hold all of its blocks."""
        self.links: dict[int, Link] = {}
        self.children: dict[PrefixNode, None] | None = None

    @property
    def end(self) -> int:
        """Return the number of blocks of the path, this node included."""
        return self.start + len(self.keys)


class Cache:
    """Blocks of one worker. The list's newest end is ``edge.older``, its oldest ``edge.newer``."""

    __slots__ = ("bit", "blocks", "capacity", "edge", "locked", "slot")

    def __init__(self, slot: int, capacity_blocks: int, root: PrefixNode) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.capacity = max(1, capacity_blocks)
        self.blocks = 0
        self.locked = 0
        """Number of these blocks on the paths of running calls."""
        self.edge = Link(root)

    def __iter__(self) -> Iterator[Link]:
        """Yield the links from the least to the most recently used; the current one may be unlinked."""
        link = self.edge.newer
        while link is not self.edge:
            following = link.newer
            yield link
            link = following
