"""The queue in lanes, by the workers that can take a call: selections without the calls of some lanes.

Calls that no open worker can take keep their place, and the others are ordered as if these were
absent. A lane holds the queued calls with one restriction and orders its clients as
:meth:`VirtualCounters.least` orders those of the whole queue: level by level the smallest counter, then
the earliest call, then the name. A selection compares the first of each lane that takes part.

Cost, amortised: O(lanes * levels * log siblings) for a selection, O(levels * log siblings) to add or to
discard a call.

Weakness: linear in the lanes, 4 ms for 500. Calls of clients are in one for each set of kinds of
workers, and for each set of workers where a call failed. Only a gateway names workers, in its subset
hints; one with hundreds of different hints in a queue makes selections slow.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from fairserve.interactions.call import Restriction
from fairserve.interactions.lazy_heap import LazyHeap
from fairserve.scheduling.fairness.counter_node import CounterNode
from fairserve.scheduling.fairness.falls import Falls
from fairserve.scheduling.fairness.ranking import Ranking


class Lane(Ranking):
    """Queued calls with one restriction."""

    few = 0  # a selection compares levels, not clients

    def __init__(self, falls: Falls[CounterNode]) -> None:
        super().__init__(falls)
        self._arrivals: dict[CounterNode, LazyHeap[str]] = {}
        """Calls below each outer level, by arrival number."""

    def add(self, client: CounterNode, arrival: int, call_id: str) -> None:
        """Add a queued call of a client."""
        self._keep_shape()
        self._arrive(client, arrival, call_id)
        super().add(client, arrival, call_id)

    def _arrive(self, client: CounterNode, arrival: int, call_id: str) -> None:
        for node in client.line[:-1]:
            calls = self._arrivals.get(node)
            if calls is None:
                calls = self._arrivals[node] = LazyHeap()
            calls.set(call_id, arrival)

    def discard(self, client: CounterNode, arrival: int, call_id: str) -> None:
        """Remove a call."""
        self._keep_shape()
        for node in client.line[:-1]:
            calls = self._arrivals[node]
            calls.discard(call_id)
            if not calls:
                del self._arrivals[node]
        super().discard(client, arrival, call_id)

    def competes(self, node: CounterNode) -> bool:
        """Return whether a sibling of a node has calls below it."""
        self._keep_shape()
        level = self._levels.get(node.parent)
        return level is not None and len(level) > (node in level)

    def earliest(self, client: CounterNode) -> tuple[int, str] | None:
        """Return the earliest call of a client as ``(arrival number, call id)``."""
        own = self._calls.get(client)
        return None if own is None else own[0]

    def least(self, parent: CounterNode) -> tuple[Any, CounterNode] | None:
        """Return the key of the child to serve next below a node, and the child; None without any."""
        self._catch_up()
        level = self._levels.get(parent)
        return None if level is None else self._least(level)

    def _key(self, node: CounterNode) -> Any:
        """Return the counter, the earliest arrival and the name of a node."""
        counter = node.served + node.reserved
        if node.line:
            return counter, self._calls[node][0][0], node.name
        return counter, self._arrivals[node].first()[0], node.name

    def _rebuild(self) -> None:
        self._arrivals = {}
        for client, own in self._calls.items():
            for arrival, call_id in own:
                self._arrive(client, arrival, call_id)
        super()._rebuild()


class Lanes:
    """All queued calls, by restriction. ``root`` is the root of the counters."""

    def __init__(self, falls: Falls[CounterNode], root: CounterNode) -> None:
        self._falls, self._root = falls, root
        self._lanes: dict[Restriction, Lane] = {}

    def add(
        self, restriction: Restriction, client: CounterNode, arrival: int, call_id: str
    ) -> None:
        """Add a queued call of a client."""
        lane = self._lanes.get(restriction)
        if lane is None:
            lane = self._lanes[restriction] = Lane(self._falls)
        lane.add(client, arrival, call_id)

    def discard(
        self, restriction: Restriction, client: CounterNode, arrival: int, call_id: str
    ) -> None:
        """Remove a call."""
        lane = self._lanes[restriction]
        lane.discard(client, arrival, call_id)
        if not lane:
            del self._lanes[restriction]

    def without(self, excluded: Collection[Restriction]) -> OpenLanes:
        """Return the lanes that take part in a selection; valid until the queue or a counter changes."""
        lanes = [lane for each, lane in self._lanes.items() if each not in excluded]
        return OpenLanes(lanes, self._root)


class OpenLanes:
    """The lanes that take part in a selection."""

    def __init__(self, lanes: list[Lane], root: CounterNode) -> None:
        self._lanes, self._root = lanes, root

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def least(self, parent: CounterNode) -> CounterNode | None:
        """Return the child of a node to serve next; None if no call is below it."""
        tops = [found for lane in self._lanes if (found := lane.least(parent)) is not None]
        return min(tops, key=lambda found: found[0])[1] if tops else None

    def smallest(self, parent: CounterNode) -> float:
        """Return the smallest counter among the children of a node; infinite without a call below."""
        found = self.least(parent)
        return math.inf if found is None else found.served + found.reserved

    def contended(self, client: CounterNode) -> tuple[bool, ...]:
        """Return for each level of a client's path whether a sibling takes part in the selection."""
        return tuple(any(lane.competes(node) for lane in self._lanes) for node in client.line)

    def first(self) -> str:
        """Return the earliest call of the client to serve next. Raises IndexError if there is none."""
        node = self._root
        while not node.line:
            below = self.least(node)
            if below is None:
                raise IndexError("nothing is queued in these lanes")
            node = below
        calls = (lane.earliest(node) for lane in self._lanes)
        return min(call for call in calls if call is not None)[1]
