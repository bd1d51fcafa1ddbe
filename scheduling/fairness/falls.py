"""Queued nodes of a counter tree whose counters decreased, for heaps that keep lower bounds.

A heap by counters stays correct without an update while counters increase: an entry that is too small is
corrected when it is the first. Only a decrease needs a new entry. A client may be in any number of
heaps, so a decrease is recorded once, and each heap reads the decreases since its last use.

Cost: O(1) to record; a heap reads each node that fell since then once. Memory: one entry for each
queued node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

N = TypeVar("N")


class Falls(Generic[N]):
    """Nodes in the order of their last decrease."""

    __slots__ = ("_nodes", "count", "shape")

    def __init__(self) -> None:
        self._nodes: OrderedDict[N, int] = OrderedDict()
        """Number of the last decrease of each node."""
        self.count = 0
        """Number of decreases so far."""
        self.shape = 0
        """Number of changes of the tree that moved a queued client."""

    def record(self, node: N) -> None:
        """Record that the counter of a queued node decreased."""
        self.count += 1
        self._nodes[node] = self.count
        self._nodes.move_to_end(node)

    def forget(self, node: N) -> None:
        """Forget a node that has nothing queued any more."""
        self._nodes.pop(node, None)

    def since(self, count: int) -> Iterator[N]:
        """Yield the nodes that fell after ``count`` decreases, the latest first."""
        for node in reversed(self._nodes):
            if self._nodes[node] <= count:
                return
            yield node
