"""One node of the tree of virtual counters, and its children in lazy heaps.

Three values of the children with queued calls are needed: the smallest counter, the smallest
counter without predictions, and the earliest arrival. Each has a heap whose entries are lower
bounds: counters and arrivals normally increase, so a stale entry is corrected when it reaches the
top, and only a decrease pushes a new entry. The second and third heap are created on first use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from fairserve.interactions.call import ClientPath
from fairserve.scheduling.fairness.falls import Falls

_SLACK = 64
"""Number of entries over twice the children at which a heap is rebuilt."""


Entry = tuple[float, int, str, "CounterNode"]
"""Counter, arrival of the earliest call, name (so that nodes are never compared), node."""


class CounterNode:
    """A client (leaf) or an outer level (parent), with its counter, calls and children."""

    __slots__ = (
        "active",
        "by_arrival",
        "by_counter",
        "by_served",
        "calls",
        "children",
        "earliest",
        "elsewhere",
        "entry",
        "falls",
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

    def __init__(self, name: str, parent: CounterNode | None) -> None:
        self.name = name
        self.parent: CounterNode = self if parent is None else parent
        """Parent; the root is its own parent."""
        self.served = 0.0
        """The counter without outstanding predictions."""
        self.reserved = 0.0
        """Outstanding predictions; the counter is ``served + reserved``."""
        self.elsewhere = 0.0
        """Part of ``reserved`` that belongs to calls of other counters."""
        self.queued = 0
        """Queued calls here and below."""
        self.calls = 0
        """Queued and running calls here and below."""
        self.earliest = 0
        """Arrival number of the earliest queued call; for a parent, a lower bound of it."""
        self.path: ClientPath = ()
        """Client path of a leaf; empty for a parent."""
        self.line: tuple[CounterNode, ...] = ()
        """Nodes charged for a leaf, outermost first, the leaf last; empty for a parent."""
        self.queue: Any = None
        """Data that the owner of the counters attaches to a leaf."""
        self.children: dict[str, CounterNode] = {}
        self.last_left: CounterNode | None = None
        """The child that left the queue last; lifts use its current counter."""
        self.active = 0
        """Number of children with queued calls."""
        self.entry: Entry | None = None
        """Valid entry in the parent's heap by counter; None if there is none."""
        self.falls: Falls[CounterNode] | None = None if parent is None else parent.falls
        """Records decreases of queued nodes, for other heaps than those of the parent; None: nobody
        reads them."""
        self.by_counter: list[Entry] = []
        self.by_served: list[tuple[float, str, CounterNode]] | None = None
        self.by_arrival: list[tuple[int, str, CounterNode]] | None = None

    def become_leaf(self, path: ClientPath) -> None:
        """Turn this node into the client of that path."""
        self.path = path
        line = [self]
        while line[-1].parent is not line[-1].parent.parent:
            line.append(line[-1].parent)
        self.line = tuple(reversed(line))

    def below(self) -> Iterator[CounterNode]:
        """Yield all nodes below, parents before their children."""
        for child in self.children.values():
            yield child
            yield from child.below()

    def forget(self, child: CounterNode) -> None:
        """Remove a child that has no calls."""
        assert not child.calls, "only an idle one may be forgotten"
        del self.children[child.name]
        if self.last_left is child:
            self.last_left = None
        child.dissolve()

    def dissolve(self) -> None:
        """Drop what makes cyclic garbage of a forgotten node and of those below it."""
        for node in (self, *self.below()):
            node.children, node.by_counter = {}, []
            node.by_served = node.by_arrival = node.entry = node.last_left = None
            node.line = ()

    def enter(self, child: CounterNode, *, fell: bool = True) -> None:
        """Update the heaps for a child's first queued call, earlier arrival, or decreased service.

        ``fell`` is false if its counter did not decrease.
        """
        if fell:
            self.fell(child)
        else:
            self._push(child)
        if self.by_served is not None:
            heappush(self.by_served, (child.served, child.name, child))
            if len(self.by_served) > 2 * self.active + _SLACK:
                self._rank_by_served({entry[-1] for entry in self.by_served})
        if self.by_arrival is not None:
            heappush(self.by_arrival, (child.earliest, child.name, child))
            if len(self.by_arrival) > 2 * self.active + _SLACK:
                self._rank_by_arrival({entry[-1] for entry in self.by_arrival})

    def fell(self, child: CounterNode) -> None:
        """Update the heap for a queued child whose counter decreased."""
        if child.falls is not None:
            child.falls.record(child)
        self._push(child)

    def _push(self, child: CounterNode) -> None:
        heap = self.by_counter
        heappush(heap, child.renew())
        if len(heap) > 2 * self.active + _SLACK:  # mostly stale: rebuild
            self._rank_by_counter({entry[-1] for entry in heap})

    def renew(self) -> Entry:
        """Push and return a valid entry with the current counter."""
        entry = self.entry = (self.served + self.reserved, self.earliest, self.name, self)
        return entry

    def least(self, *, client: bool = False) -> CounterNode:
        """Return the child to serve next; with ``client`` the leaf, by the same rule level by level.

        Raises IndexError if nothing is queued below.
        """
        heap = self.by_counter
        while True:
            entry = heap[0]
            child = entry[3]
            if child.entry is entry:
                if child.line:
                    return child
                if not _tied(heap) or child.settle_earliest() == entry[1]:
                    if not client:
                        return child
                    heap = child.by_counter
            elif child.entry is None and child.queued:
                entry = (child.served + child.reserved, child.earliest, child.name, child)
                child.entry = entry  # ``renew``, inlined
                heapreplace(heap, entry)
            else:  # nothing is queued, or a newer entry exists in the heap
                heappop(heap)

    def smallest(self) -> float:
        """Return the smallest counter of the children with queued calls; infinite without one."""
        if not self.active:
            return math.inf
        entry = self.by_counter[0]
        if entry[3].entry is entry:
            return entry[0]
        child = self.least()
        return child.served + child.reserved

    def least_served(self) -> float:
        """Return the smallest counter without predictions. Raises IndexError as ``least`` does."""
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
        """Make ``earliest`` exact and return it."""
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
                if self.earliest != arrival:
                    self.earliest = arrival
                    self.entry = None
                return arrival
            if arrival < present:
                heapreplace(heap, (present, child.name, child))
            else:
                heappop(heap)

    def rank(self) -> None:
        """Rebuild the heaps from the children."""
        children = self.children.values()
        self._rank_by_counter(children)
        if self.by_served is not None:
            self._rank_by_served(children)
        if self.by_arrival is not None:
            self._rank_by_arrival(children)

    def _rank_by_counter(self, children: Iterable[CounterNode]) -> None:
        self.by_counter = [child.renew() for child in children if child.queued]
        heapify(self.by_counter)

    def _rank_by_served(self, children: Iterable[CounterNode]) -> None:
        self.by_served = [(child.served, child.name, child) for child in children if child.queued]
        heapify(self.by_served)

    def _rank_by_arrival(self, children: Iterable[CounterNode]) -> None:
        self.by_arrival = [
            (child.earliest, child.name, child) for child in children if child.queued
        ]
        heapify(self.by_arrival)


def _tied(heap: list[Entry]) -> bool:
    """Return whether another entry may be equally small, so that exact arrivals decide."""
    value, size = heap[0][0], len(heap)
    return (size > 1 and heap[1][0] == value) or (size > 2 and heap[2][0] == value)


def node_to_plain(node: CounterNode) -> dict[str, Any]:
    """Return a node and all below it as plain JSON values, without the heaps."""
    plain: dict[str, Any] = {
        "name": node.name,
        "served": node.served,
        "reserved": node.reserved,
        "elsewhere": node.elsewhere,
    }
    if node.line:
        plain["path"] = list(node.path)
        plain["queued"], plain["calls"] = node.queued, node.calls
        plain["earliest"] = node.earliest
    else:
        plain["last_left"] = None if node.last_left is None else node.last_left.name
        plain["children"] = [node_to_plain(child) for child in node.children.values()]
    return plain


def node_from_plain(plain: dict[str, Any], parent: CounterNode | None) -> CounterNode:
    """Return the node of plain JSON values below ``parent``, with new heaps."""
    node = CounterNode(plain["name"], parent)
    node.served, node.reserved = plain["served"], plain["reserved"]
    node.elsewhere = plain["elsewhere"]
    if "children" not in plain:
        node.become_leaf(tuple(plain["path"]))
        node.queued, node.calls = plain["queued"], plain["calls"]
        node.earliest = plain["earliest"]
        return node
    children = [node_from_plain(child, node) for child in plain["children"]]
    node.children = {child.name: child for child in children}
    if plain["last_left"] is not None:
        node.last_left = node.children[plain["last_left"]]
    node.queued = sum(child.queued for child in children)
    node.calls = sum(child.calls for child in children)
    node.active = sum(1 for child in children if child.queued)
    node.earliest = min((child.earliest for child in children if child.queued), default=0)
    node.rank()
    return node
