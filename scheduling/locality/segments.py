"""Radix tree of segments: finds the end of a path of block keys, for any set of holders.

A node is a run of blocks without a branch. Keys are chained
(:mod:`fairserve.scheduling.locality.block_keys`), so one map from the first key of a node to the
node replaces maps of children, and one key comparison compares a whole prefix. Evictions by block
key need the map of all blocks: it is built at the first such event and updated by each, so that
decisions do not pay for it.

This class splits and joins nodes together with the lists of their holders; the prefix tree
(:mod:`fairserve.scheduling.locality.prefix_tree`) decides which worker holds a node, and for how
long.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.locality.block_map import BlockMap
from fairserve.scheduling.locality.prefix_node import Link, PrefixNode

Appeared = Callable[[int], None]
"""Listener that receives the first key of a node whose blocks got their first holder."""

Disappeared = Callable[[PrefixNode, int], None]
"""Listener for a node that lost its last holder beyond its first ``kept`` blocks; 0: all of it."""

Renamed = Callable[[PrefixNode, PrefixNode, int], None]
"""Listener that receives two nodes and a depth: paths that ended in the first node, at most at that
depth, now end in the second one; nothing was stored or evicted."""

_SHORT_BLOCKS = 8
"""Length below which a node is joined with its only child, or its parent, when it is used."""


class Segments:
    """Nodes by their first keys. O(nodes on the path + log blocks) to find or add one."""

    def __init__(self) -> None:
        self.root = PrefixNode(None, 0, array("Q"))
        self.heads: dict[int, PrefixNode] = {}
        """Nodes by their first key."""
        self.blocks = 0
        """Number of blocks of all nodes."""
        self._block_map = BlockMap()
        self._found: tuple[BlockKeys | None, tuple[int, PrefixNode]] = (None, (0, self.root))
        """The last result of :meth:`find`, until a node changes: one call is looked up several
        times, and calls that share a prefix often follow one another."""
        self._appeared: list[Appeared] = []
        self._disappeared: list[Disappeared] = []
        self._renamed: list[Renamed] = []

    def follow(self, appeared: Appeared, disappeared: Disappeared, renamed: Renamed) -> None:
        """Subscribe to blocks that get their first holder, and to those that lose their last one.

        A listener for the block after a match is notified with its key, which is the first of the
        run.
        """
        self._appeared.append(appeared)
        self._disappeared.append(disappeared)
        self._renamed.append(renamed)

    def clear(self) -> None:
        """Remove all nodes, without events."""
        self.root = PrefixNode(None, 0, array("Q"))
        self.heads = {}
        self.blocks, self._block_map = 0, BlockMap()
        self._forget_found()

    # --- reading ----------------------------------------------------------------------------------

    def find(self, keys: BlockKeys) -> tuple[int, PrefixNode]:
        """Return the number of leading blocks cached anywhere, and the node of the last of them."""
        before, (blocks, node) = self._found
        if keys is before:
            return blocks, node
        if before is None or not 0 < blocks <= len(keys) or keys[blocks - 1] != before[blocks - 1]:
            node = self.root
        elif blocks < node.start + len(
            node.keys
        ):  # both end at the same depth; this one may continue inside it
            assert node.parent is not None
            node = node.parent
        found = self._walk(keys, node)
        self._found = (keys, found)
        return found

    def _forget_found(self) -> None:
        self._found = (None, (0, self.root))

    def _walk(self, keys: BlockKeys, node: PrefixNode) -> tuple[int, PrefixNode]:
        """Continue a walk from the end of a node on the path."""
        heads = self.heads
        depth, wanted = node.start + len(node.keys), len(keys)
        while depth < wanted:
            child = heads.get(keys[depth])
            if child is None:
                break
            node, own = child, child.keys
            end = depth + len(own)
            if end <= wanted and own[-1] == keys[end - 1]:
                depth = end
                continue
            low, high = 1, min(len(own), wanted - depth)  # own[:low] is common
            while low < high:
                middle = (low + high + 1) >> 1
                if own[middle - 1] == keys[depth + middle - 1]:
                    low = middle
                else:
                    high = middle - 1
            return depth + low, node
        return depth, node

    def find_block(self, key: int) -> tuple[PrefixNode, int] | None:
        """Return the node of a block and the block's index in it. Needs the map of all blocks."""
        return self._block_map.find(key, self.heads)

    # --- writing ----------------------------------------------------------------------------------

    def add(self, parent: PrefixNode, start: int, keys: array[int]) -> PrefixNode:
        """Add a child without holders; call :meth:`notify_appeared` once it has one."""
        node = PrefixNode(parent, start, keys)
        if parent.children is None:
            parent.children = {}
        parent.children[node] = None
        self.heads[keys[0]] = node
        self.blocks += len(keys)
        self._forget_found()
        self._block_map.added(node)
        return node

    def notify_appeared(self, key: int) -> None:
        """Publish that the blocks of the node that begins with this key have their first holder."""
        for appeared in self._appeared:
            appeared(key)

    def split(self, lower: PrefixNode, depth: int) -> PrefixNode:
        """Split a node at a depth inside it; return the new upper part. The lower one stays as it is."""
        self._forget_found()
        parent = lower.parent
        assert parent is not None
        assert parent.children is not None
        cut = depth - lower.start
        upper = PrefixNode(parent, lower.start, lower.keys[:cut])
        upper.mask = lower.mask
        upper.children = {lower: None}
        for slot, link in lower.links.items():
            twin = upper.links[slot] = Link(upper)
            twin.locks = link.locks
            twin.insert_before(link.newer)
        del parent.children[lower]
        parent.children[upper] = None
        lower.parent, lower.start, lower.keys = upper, depth, lower.keys[cut:]
        self._block_map.added(upper)
        self.heads[upper.keys[0]] = upper
        self.heads[lower.keys[0]] = lower
        for renamed in self._renamed:
            renamed(lower, upper, depth)
        return upper

    def merge_path(self, node: PrefixNode) -> None:
        """Join short nodes on a path that was just used, where branches have been removed.

        A node and its only child are joined if the same workers hold and lock both and one of the
        two is short: long parts are kept for the next branch.
        """
        upper = node.parent
        while upper is not None and upper.children is not None and upper.parent is not None:
            if (
                upper.mask == node.mask
                and len(upper.children) == 1
                and min(len(upper.keys), len(node.keys)) < _SHORT_BLOCKS
                and all(link.locks == upper.links[slot].locks for slot, link in node.links.items())
            ):
                self._merge(upper, node)
            else:
                node = upper
            upper = node.parent

    def _merge(self, upper: PrefixNode, lower: PrefixNode) -> None:
        """Join two nodes, the inverse of :meth:`split`; the lower becomes as recent as the upper."""
        parent = upper.parent
        assert parent is not None
        assert parent.children is not None
        del parent.children[upper], self.heads[lower.keys[0]]
        parent.children[lower] = None
        self.heads[upper.keys[0]] = lower
        lower.parent, lower.start, lower.keys = parent, upper.start, upper.keys + lower.keys
        for slot, link in lower.links.items():
            twin = upper.links[slot]
            link.unlink()
            link.insert_before(twin)
            twin.unlink()
        upper.keys = upper.keys[:0]
        self._forget_found()
        self._block_map.added(lower)
        for renamed in self._renamed:
            renamed(upper, lower, lower.end)
        upper.links.clear()  # with their node they would be cyclic garbage

    def remove(self, node: PrefixNode) -> None:
        """Remove a node without holders and children."""
        parent = node.parent
        assert parent is not None
        assert parent.children is not None
        del parent.children[node]
        if not parent.children:
            parent.children = None
        del self.heads[node.keys[0]]
        self.truncate(node, 0)

    def truncate(self, node: PrefixNode, kept: int) -> None:
        """Truncate a node without children."""
        self._forget_found()
        self.blocks -= len(node.keys) - kept
        del node.keys[kept:]
        for disappeared in self._disappeared:
            disappeared(node, kept)
