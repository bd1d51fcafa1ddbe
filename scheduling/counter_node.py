"""One node of the tree of virtual counters, and its children in lazy heaps.

Three questions are asked about the children with something queued: which has the smallest counter,
which counter is the smallest without predictions, and which call arrived first. Each has a heap whose
entries are lower bounds: counters and arrivals grow in the ordinary course, so a stale entry is put
right when it comes to the top, and only where one falls is a fresh entry pushed. The second and the
third heap are made when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from fairserve.interactions.call import ClientPath

_SLACK = 64
"""A heap is made anew when it has so many more entries than twice the children that belong there."""


class Node:
    """A client (a leaf), or a level above clients (a parent): its counter, its calls, its children."""

    __slots__ = (
        "active",
        "by_arrival",
        "by_counter",
        "by_served",
        "calls",
        "children",
        "earliest",
        "last_left",
        "line",
        "name",
        "parent",
        "path",
        "queue",
        "queued",
        "reserved",
        "served",
    )

    def __init__(self, name: str, parent: Node | None) -> None:
        self.name = name
        self.parent: Node = self if parent is None else parent
        """The root is its own."""
        self.served = 0.0
        """The counter without outstanding predictions."""
        self.reserved = 0.0
        """Outstanding predictions. The counter is the sum of both."""
        self.queued = 0
        """Queued calls here and below."""
        self.calls = 0
        """Queued and running calls here and below."""
        self.earliest = 0
        """Arrival number of the earliest queued call; of a parent, a lower bound of it."""
        self.path: ClientPath = ()
        """Of a leaf: the client's path."""
        self.line: tuple[Node, ...] = ()
        """Of a leaf: the nodes that its charges go to, outermost first, itself last; else empty."""
        self.queue: Any = None
        """Of a leaf: for the owner of the counters, what it keeps with a client."""
        self.children: dict[str, Node] = {}
        self.last_left: Node | None = None
        """The child that left the queue last; its present counter is what counts."""
        self.active = 0
        """Number of children with something queued."""
        self.by_counter: list[tuple[float, int, str, Node]] = []
        self.by_served: list[tuple[float, str, Node]] | None = None
        self.by_arrival: list[tuple[int, str, Node]] | None = None

    def become_leaf(self, path: ClientPath) -> None:
        """This node is the client of that path."""
        self.path = path
        line = [self]
        while line[-1].parent is not line[-1].parent.parent:
            line.append(line[-1].parent)
        self.line = tuple(reversed(line))

    def below(self) -> Iterator[Node]:
        """All nodes below, parents before their children."""
        for child in self.children.values():
            yield child
            yield from child.below()

    def forget(self, child: Node) -> None:
        """Take out a child that has no calls."""
        assert not child.calls, "only an idle one may be forgotten"
        del self.children[child.name]
        if self.last_left is child:
            self.last_left = None

    def enter(self, child: Node) -> None:
        """A child has something queued now, or its earliest arrival or received service fell."""
        self.fell(child)
        if self.by_served is not None:
            heappush(self.by_served, (child.served, child.name, child))
            if len(self.by_served) > 2 * self.active + _SLACK:
                self._rank_by_served({entry[-1] for entry in self.by_served})
        if self.by_arrival is not None:
            heappush(self.by_arrival, (child.earliest, child.name, child))
            if len(self.by_arrival) > 2 * self.active + _SLACK:
                self._rank_by_arrival({entry[-1] for entry in self.by_arrival})

    def fell(self, child: Node) -> None:
        """The counter of a child with something queued is smaller than it was."""
        heap = self.by_counter
        heappush(heap, (child.served + child.reserved, child.earliest, child.name, child))
        if len(heap) > 2 * self.active + _SLACK:  # mostly stale: begin anew
            self._rank_by_counter({entry[-1] for entry in heap})

    def least(self) -> Node:
        """The child to be served next. Raises IndexError if none has anything queued."""
        heap = self.by_counter
        while True:
            value, arrival, _, child = heap[0]
            if not child.queued:
                heappop(heap)
                continue
            present = child.served + child.reserved
            if value == present and arrival == child.earliest:
                if child.line or not self._tied(value):
                    return child
                if child.settle_earliest() == arrival:
                    return child
                heapreplace(heap, (present, child.earliest, child.name, child))
            elif value < present or (value == present and arrival < child.earliest):
                heapreplace(heap, (present, child.earliest, child.name, child))
            else:  # a fresher, lower entry of this child exists further down
                heappop(heap)

    def _tied(self, value: float) -> bool:
        """Whether another entry may have this smallest counter, too, so that arrivals decide."""
        heap = self.by_counter
        return any(entry[0] == value for entry in heap[1:3])

    def least_served(self) -> float:
        """The smallest counter without predictions. Raises IndexError as ``least`` does."""
        if self.by_served is None:
            self._rank_by_served(self.children.values())
        heap = self.by_served
        assert heap is not None, "made above"
        while True:
            served, _, child = heap[0]
            if not child.queued or served > child.served:
                heappop(heap)
            elif served < child.served:
                heapreplace(heap, (child.served, child.name, child))
            else:
                return served

    def settle_earliest(self) -> int:
        """Make the bound exact: the arrival number of the earliest call queued here or below."""
        if self.line:
            return self.earliest
        if self.by_arrival is None:
            self._rank_by_arrival(self.children.values())
        heap = self.by_arrival
        assert heap is not None, "made above"
        while True:
            arrival, _, child = heap[0]
            if not child.queued:
                heappop(heap)
                continue
            present = child.settle_earliest()
            if arrival == present:
                self.earliest = arrival
                return arrival
            if arrival < present:
                heapreplace(heap, (present, child.name, child))
            else:
                heappop(heap)

    def rank(self) -> None:
        """Make the heaps anew from the children."""
        children = self.children.values()
        self._rank_by_counter(children)
        if self.by_served is not None:
            self._rank_by_served(children)
        if self.by_arrival is not None:
            self._rank_by_arrival(children)

    def _rank_by_counter(self, children: Iterable[Node]) -> None:
        self.by_counter = [
            (child.served + child.reserved, child.earliest, child.name, child)
            for child in children
            if child.queued
        ]
        heapify(self.by_counter)

    def _rank_by_served(self, children: Iterable[Node]) -> None:
        self.by_served = [(child.served, child.name, child) for child in children if child.queued]
        heapify(self.by_served)

    def _rank_by_arrival(self, children: Iterable[Node]) -> None:
        self.by_arrival = [(child.earliest, child.name, child) for child in children if child.queued]
        heapify(self.by_arrival)
