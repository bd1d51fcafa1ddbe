"""Which node of a prefix tree has a block: only news that name single blocks need to know."""

from __future__ import annotations

from fairserve.scheduling.prefix_node import Node

_NEW_MAX = 10_000
"""So many nodes are made without a question for a block, and the map is given up."""

_SWEEP_MIN = 65_536
"""The map is looked through when it has about this many entries too many."""


class BlockMap:
    """Every block's node, for news that name blocks. Made at the first question, not before.

    Nodes that were added since the last question wait in a list; entries of blocks that have gone are
    found out when they are asked for, and swept when they are the majority.
    """

    def __init__(self) -> None:
        self._used = False
        self._nodes: dict[int, Node] = {}
        """By block key, some of blocks that have gone."""
        self._new: list[Node] = []
        self._sweep_at = _SWEEP_MIN

    def added(self, node: Node) -> None:
        """A node was made, or has got keys of another one."""
        if self._used:
            self._new.append(node)
            if len(self._new) > _NEW_MAX:  # nobody asks any more
                self._used = False
                self._nodes.clear()
                self._new.clear()

    def find(self, key: int, heads: dict[int, Node]) -> tuple[Node, int] | None:
        """The node of a cached block and the block's place in it. ``heads`` has all nodes."""
        self._catch_up(heads)
        node = self._nodes.get(key)
        if node is None:
            return None
        try:
            return node, node.keys.index(key)
        except ValueError:
            del self._nodes[key]
            return None

    def _catch_up(self, heads: dict[int, Node]) -> None:
        if not self._used:
            self._used = True
            self._new = list(heads.values())
        for node in self._new:
            self._nodes.update(dict.fromkeys(node.keys, node))
        self._new.clear()
        if len(self._nodes) > self._sweep_at:
            self._nodes = {key: node for node in heads.values() for key in node.keys}
            self._sweep_at = 2 * len(self._nodes) + _SWEEP_MIN
