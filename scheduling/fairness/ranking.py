"""Ranking of some queued calls by the counters of their clients: finds the first in logarithmic time.

A ranking holds any part of the queue: the calls with the same cached prefix, or those of active runs. It
mirrors the part of the counter tree that has such calls. Each level is a heap of its children, by
their counters and by the first call below them, so the first call of a ranking is the one with the
smallest counters, compared level by level, then the earliest arrival.

Heaps are lazy: entries are lower bounds, corrected when they come first. Decreases come from
:class:`fairserve.scheduling.fairness.falls.Falls`.

Cost, amortised: O(levels * log siblings) to add a call and to find the first, O(log calls of the client)
to discard one, and one look-up for each counter that decreased since the last use.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any

from fairserve.scheduling.fairness.counter_node import Node
from fairserve.scheduling.fairness.falls import Falls

Within = Callable[[Node], tuple[float, ...] | None]
"""Returns the counters of a client, level by level; None if it is beyond a slack."""

Ranked = tuple[tuple[float, ...], int, str]
"""Counters of the client, outermost level first; arrival number; id of the call."""

MOST_ASIDE = 64
"""Most children of a level that a selection passes over, because nothing below them is eligible."""

SLACK = 64
"""Number of entries over twice the children at which a heap is rebuilt."""


class Level:
    """The children of one node that have ranked calls below them."""

    __slots__ = ("heap", "keys")

    def __init__(self) -> None:
        self.heap: list[tuple[Any, int, Node]] = []
        self.keys: dict[Node, Any] = {}
        """Key of the valid entry of each child."""


class Ranking:
    """Queued calls by the counters of their clients."""

    def __init__(self, falls: Falls[Node]) -> None:
        self._falls = falls
        self._seen, self._shape = falls.count, falls.shape
        self._top = Level()
        self._levels: dict[Node, Level] = {}
        """Levels by their parent, below the outermost one."""
        self._calls: dict[Node, list[tuple[int, str]]] = {}
        """Calls of each client as ``(arrival number, call id)``, ascending."""
        self._numbers = count()

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._calls)

    def add(self, client: Node, arrival: int, call_id: str) -> None:
        """Add a queued call of a client."""
        self._keep_shape()
        own = self._calls.get(client)
        if own is None:
            self._calls[client] = [(arrival, call_id)]
        else:
            insort(own, (arrival, call_id))
            if own[0][1] != call_id:
                return
        self._rise(client)

    def discard(self, client: Node, arrival: int, call_id: str) -> None:
        """Remove a call."""
        self._keep_shape()
        own = self._calls[client]
        del own[bisect_left(own, (arrival, call_id))]
        if not own:
            del self._calls[client]
            self._sink(client)

    def first(self, within: Within, but: Collection[Node] = ()) -> Ranked | None:
        """Return the first call among the clients within a slack, except ``but``; None if there is none.

        At most ``MOST_ASIDE`` children of a level are passed over because none below them is eligible.
        """
        self._catch_up()
        return self._first(self._top, within, but)

    def _first(self, level: Level, within: Within, but: Collection[Node]) -> Ranked | None:
        best: Ranked | None = None
        aside: list[tuple[Any, Node]] = []
        while len(aside) <= MOST_ASIDE:
            found = self._least(level)
            if found is None or (best is not None and best <= found[0]) or within(found[1]) is None:
                break  # all others have larger keys, so they are beyond the slack, too
            key, child = found
            if child in but:
                ranked = None
            elif child.line:
                ranked = key
            else:
                ranked = self._first_below(child, within, but)
            if ranked is not None and (best is None or ranked < best):
                best = ranked
            if ranked == key:
                break
            heappop(level.heap)
            del level.keys[child]
            aside.append((key, child))
        for key, child in aside:
            self._enter(level, child, key)
        return best

    def _first_below(self, child: Node, within: Within, but: Collection[Node]) -> Ranked | None:
        found = self._first(self._levels[child], within, but)
        return None if found is None else ((child.served + child.reserved, *found[0]), *found[1:])

    # --- lazy heaps -------------------------------------------------------------------------------

    def _key(self, node: Node) -> Any:
        """Return the present key of a node among its siblings."""
        counter = node.served + node.reserved
        if node.line:
            return ((counter,), *self._calls[node][0])
        found = self._least(self._levels[node])
        assert found is not None, "an empty level was removed"
        counters, arrival, call_id = found[0]
        return (counter, *counters), arrival, call_id

    def _least(self, level: Level) -> tuple[Any, Node] | None:
        """Return the smallest key of a level and its child; None if the level is empty."""
        heap, keys = level.heap, level.keys
        while heap:
            key, _, child = heap[0]
            if keys.get(child) is not key:
                heappop(heap)
                continue
            present = self._key(child)
            if present == key:
                return key, child
            keys[child] = present
            heapreplace(heap, (present, next(self._numbers), child))
        return None

    def _enter(self, level: Level, child: Node, key: Any) -> None:
        """Add an entry for a child unless it has one that is as small."""
        known = level.keys.get(child)
        if known is not None and known <= key:
            return
        level.keys[child] = key
        heappush(level.heap, (key, next(self._numbers), child))
        if len(level.heap) > 2 * len(level.keys) + SLACK:
            level.heap = [(key, next(self._numbers), child) for child, key in level.keys.items()]
            heapify(level.heap)

    def _rise(self, node: Node) -> None:
        """Update the entries of a node whose key may have decreased, and of those above it."""
        while node.parent is not node:
            self._enter(self._level_of(node.parent), node, self._key(node))
            node = node.parent

    def _sink(self, node: Node) -> None:
        """Remove the entries of a node below which nothing is ranked, and of such nodes above it."""
        while node.parent is not node:
            parent = node.parent
            level = self._top if parent.parent is parent else self._levels[parent]
            del level.keys[node]
            if level.keys or level is self._top:
                return
            del self._levels[parent]
            node = parent

    def _level_of(self, parent: Node) -> Level:
        """Return the level of a node's children."""
        if parent.parent is parent:
            return self._top
        level = self._levels.get(parent)
        if level is None:
            level = self._levels[parent] = Level()
        return level

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
        if self._falls.shape != self._shape:
            self._shape, self._seen = self._falls.shape, self._falls.count
            self._rebuild()

    def _rebuild(self) -> None:
        self._top, self._levels = Level(), {}
        for client in self._calls:
            self._rise(client)
