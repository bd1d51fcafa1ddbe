"""Map from blocks to nodes of a prefix tree, needed only for events that name single blocks."""

from __future__ import annotations

from fairserve.scheduling.locality.prefix_node import PrefixNode

_NEW_MAX = 10_000
"""Number of new nodes without a look-up after which the map is dropped."""

_SWEEP_MIN = 65_536
"""Number of stale entries from which the map is swept."""


class BlockMap:
    """Node of each block, for events that name blocks. Built at the first look-up.

    Nodes added since the last look-up wait in a list; entries of evicted blocks are detected at
    look-up and swept when they are the majority.
    """

    def __init__(self) -> None:
        self._used = False
        self._nodes: dict[int, PrefixNode] = {}
        """Nodes by block key, including some of evicted blocks."""
        self._new: list[PrefixNode] = []
        self._sweep_at = _SWEEP_MIN

    def added(self, node: PrefixNode) -> None:
        """Add a new node, or one that received keys of another node."""
        if self._used:
            self._new.append(node)
            if len(self._new) > _NEW_MAX:  # there are no look-ups any more
                self._used = False
                self._nodes.clear()
                self._new.clear()

    def find(self, key: int, heads: dict[int, PrefixNode]) -> tuple[PrefixNode, int] | None:
        """Return the node of a cached block and its index in it. ``heads`` has all nodes."""
        self._catch_up(heads)
        node = self._nodes.get(key)
        if node is None:
            return None
        try:
            return node, node.keys.index(key)
        except ValueError:
            del self._nodes[key]
            return None

    def _catch_up(self, heads: dict[int, PrefixNode]) -> None:
        if not self._used:
            self._used = True
            self._new = list(heads.values())
        for node in self._new:
            self._nodes.update(dict.fromkeys(node.keys, node))
        self._new.clear()
        if len(self._nodes) > self._sweep_at:
            self._nodes = {key: node for node in heads.values() for key in node.keys}
            self._sweep_at = 2 * len(self._nodes) + _SWEEP_MIN
