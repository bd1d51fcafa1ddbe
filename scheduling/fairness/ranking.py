"""Ranking of some queued calls by the counters of their clients: finds the first in logarithmic time.

A ranking holds any part of the queue: the calls with the same cached prefix, or those of active runs. It
mirrors the part of the counter tree that has such calls. Each level is a heap of its children, by
their counters and by the first call below them, so the first call of a ranking is the one with the
smallest counters, compared level by level, then the earliest arrival.

Entries of the heaps are lower bounds, corrected when they come first. Decreases come from
:class:`fairserve.scheduling.fairness.falls.Falls`. With few clients there are no heaps: queues are short
most of the time, and a comparison of all is faster than keeping an order.

Cost, amortised: O(levels * log siblings) to add a call and to find the first, O(log calls of the client)
to discard one, and one look-up for each counter that decreased since the last use.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

from fairserve.interactions.lazy_heap import LazyHeap
from fairserve.scheduling.fairness.counter_node import CounterNode
from fairserve.scheduling.fairness.falls import Falls

Within = Callable[[CounterNode], tuple[float, ...] | None]
"""Returns the counters of a client, level by level; None if it is beyond a slack."""

Ranked = tuple[tuple[float, ...], int, str]
"""Counters of the client, outermost level first; arrival number; id of the call."""

Level = LazyHeap[CounterNode]
"""The children of one node that have ranked calls below them."""

MOST_ASIDE = 64
"""Most children of a level that a selection passes over, because nothing below them is eligible."""

FEW = 8
"""Number of clients up to which a selection compares all of them."""


class Ranking:
    """Queued calls by the counters of their clients."""

    few = FEW

    def __init__(self, falls: Falls[CounterNode]) -> None:
        self._falls = falls
        self._seen = self._shape = 0
        """The falls, and the changes of the tree, that the levels include."""
        self._calls: dict[CounterNode, list[tuple[int, str]]] = {}
        """Calls of each client as ``(arrival number, call id)``, ascending."""
        self._levels: dict[CounterNode, Level] = {}
        """Levels by their parent; none while there are few clients."""

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._calls)

    def add(self, client: CounterNode, arrival: int, call_id: str) -> None:
        """Add a queued call of a client."""
        self._keep_shape()
        own = self._calls.get(client)
        if own is None:
            self._calls[client] = [(arrival, call_id)]
        else:
            insort(own, (arrival, call_id))
            if own[0][1] != call_id:
                return
        if self._levels:
            self._rise(client)
        elif len(self._calls) > self.few:
            self._rebuild()

    def discard(self, client: CounterNode, arrival: int, call_id: str) -> None:
        """Remove a call."""
        self._keep_shape()
        own = self._calls[client]
        del own[bisect_left(own, (arrival, call_id))]
        if own:
            return
        del self._calls[client]
        if 2 * len(self._calls) < self.few:
            self._levels = {}
        elif self._levels:
            self._sink(client)

    def first(self, within: Within) -> Ranked | None:
        """Return the first call among the clients within a slack; None if there is none.

        At most ``MOST_ASIDE`` children of a level are passed over because none below them is eligible.
        """
        if self._levels:
            self._catch_up()
            root = next(iter(self._calls)).line[0].parent
            return self._first(self._levels[root], within)
        best: Ranked | None = None
        for client, own in self._calls.items():
            if (counters := within(client)) is not None:
                ranked = counters, *own[0]
                if best is None or ranked < best:
                    best = ranked
        return best

    def _first(self, level: Level, within: Within) -> Ranked | None:
        best: Ranked | None = None
        aside: list[tuple[Any, CounterNode]] = []
        while len(aside) <= MOST_ASIDE:
            found = self._least(level)
            if found is None or (best is not None and best <= found[0]) or within(found[1]) is None:
                break  # all others have larger keys, so they are beyond the slack, too
            key, child = found
            ranked = key if child.line else self._first_below(child, within)
            if ranked is not None and (best is None or ranked < best):
                best = ranked
            if ranked == key:
                break
            level.discard(child)
            aside.append((key, child))
        for key, child in aside:
            level.set(child, key)
        return best

    def _first_below(self, child: CounterNode, within: Within) -> Ranked | None:
        found = self._first(self._levels[child], within)
        return None if found is None else ((child.served + child.reserved, *found[0]), *found[1:])

    # --- levels -----------------------------------------------------------------------------------

    def _key(self, node: CounterNode) -> Any:
        """Return the present key of a node among its siblings."""
        counter = node.served + node.reserved
        if node.line:
            return ((counter,), *self._calls[node][0])
        found = self._least(self._levels[node])
        assert found is not None, "an empty level was removed"
        counters, arrival, call_id = found[0]
        return (counter, *counters), arrival, call_id

    def _least(self, level: Level) -> tuple[Any, CounterNode] | None:
        """Return the smallest key of a level and its child; None if the level is empty."""
        while level:
            key, child = level.first()
            present = self._key(child)
            if present == key:
                return key, child
            level.set(child, present)
        return None

    def _rise(self, node: CounterNode) -> None:
        """Update the entries of a node whose key may have decreased, and of those above it."""
        while node.parent is not node:
            level = self._levels.get(node.parent)
            if level is None:
                level = self._levels[node.parent] = LazyHeap()
            level.lower(node, self._key(node))
            node = node.parent

    def _sink(self, node: CounterNode) -> None:
        """Remove the entries of a node below which nothing is ranked, and of such nodes above it."""
        while node.parent is not node:
            level = self._levels[node.parent]
            level.discard(node)
            if level:
                return
            node = node.parent
            del self._levels[node]

    def _catch_up(self) -> None:
        """Update the entries of the nodes whose counters decreased since the last use."""
        self._keep_shape()
        falls = self._falls
        if falls.count != self._seen:
            for node in falls.since(self._seen):
                if node in self._calls or node in self._levels:
                    self._rise(node)
            self._seen = falls.count

    def _keep_shape(self) -> None:
        """Rebuild the levels if a path of a queued client has changed, which is rare."""
        if self._levels and self._falls.shape != self._shape:
            self._rebuild()

    def _rebuild(self) -> None:
        self._shape, self._seen = self._falls.shape, self._falls.count
        self._levels = {}
        for client in self._calls:
            self._rise(client)
