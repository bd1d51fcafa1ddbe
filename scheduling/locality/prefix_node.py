"""Nodes of the prefix tree, and in which order each worker has used what it holds.

Every node has a link in the list of each of its holders. A list is in order of use, and a path is used
from its leaf to its root, so parents are newer than their children: the oldest link is a leaf of that
worker. The links are the list (no other container), because a node that is split needs its second half
put exactly beside it in the lists of all its holders.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class Link:
    """A node in the recency list of one of its holders."""

    __slots__ = ("locks", "newer", "node", "older")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.locks = 0
        """Running calls of this worker whose path goes through the node."""
        self.older: Link = self
        self.newer: Link = self

    def unlink(self) -> None:
        """Take it out of its list."""
        self.older.newer = self.newer
        self.newer.older = self.older

    def insert_before(self, newer: Link) -> None:
        """Put it into the list of ``newer``, as the next older one."""
        older = newer.older
        self.older, self.newer = older, newer
        older.newer = newer.older = self


class Node:
    """A run of blocks, read-only; the tree sets the ``locks`` of a path."""

    __slots__ = ("children", "keys", "links", "mask", "parent", "start")

    def __init__(self, parent: Node | None, start: int, keys: array[int]) -> None:
        self.parent = parent
        """None for the root, which has no keys."""
        self.start = start
        """Blocks before this node on its path."""
        self.keys = keys
        self.mask = 0
        """Workers that hold all of its blocks."""
        self.links: dict[int, Link] = {}
        self.children: dict[Node, None] | None = None

    @property
    def end(self) -> int:
        """Return the blocks of the path, this node included."""
        return self.start + len(self.keys)


class Cache:
    """Blocks of one worker. The list's newest end is ``edge.older``, its oldest ``edge.newer``."""

    __slots__ = ("bit", "blocks", "capacity", "edge", "locked", "slot")

    def __init__(self, slot: int, capacity_blocks: int, root: Node) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.capacity = max(1, capacity_blocks)
        self.blocks = 0
        self.locked = 0
        """Blocks among these on the paths of running calls."""
        self.edge = Link(root)

    def __iter__(self) -> Iterator[Link]:
        """Yield the links from the least to the most recently used; the present one may be unlinked."""
        link = self.edge.newer
        while link is not self.edge:
            following = link.newer
            yield link
            link = following
