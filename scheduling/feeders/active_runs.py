"""Queued calls of active interactions, and their order among each other.

A run is active from its first dispatch to its end (FairServe, Algorithm 1 lines 31-38). Of the
clients within the slack, the paper serves the one with the smallest counter, its earliest call.
With ``progress`` the run goes first that is expected to need the fewest calls until its end, by its
app's profile: the mean run time is shortest if nearly finished runs go first, and the slack bounds
the cost to the others.

Cost: O(log calls) to add and remove, O(clients with such calls) to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop

from fairserve.interactions.call import Call
from fairserve.scheduling.fairness.counter_node import Node
from fairserve.scheduling.feeders.earliest import Earliest

Within = Callable[[Node], tuple[float, ...] | None]
"""Returns the counters of a client, level by level; None if it is beyond the slack."""


class ActiveRuns:
    """Active interactions, and their queued calls by client."""

    def __init__(self, *, by_progress: bool) -> None:
        self._by_progress = by_progress
        self._interactions: set[str] = set()
        self._queued: dict[Node, Earliest[tuple[float, int]]] = {}

    def __contains__(self, interaction_id: object) -> bool:
        return interaction_id in self._interactions

    @property
    def interactions(self) -> list[str]:
        """Return the ids of the active interactions, in a stable order."""
        return sorted(self._interactions)

    def restore(self, interactions: Iterable[str]) -> None:
        """Set the active interactions, none of which has a queued call yet."""
        self._interactions = set(interactions)
        self._queued = {}

    def begin(self, interaction_id: str) -> bool:
        """Make an interaction active; return False if it already was."""
        if interaction_id in self._interactions:
            return False
        self._interactions.add(interaction_id)
        return True

    def end(self, interaction_id: str) -> None:
        """End an interaction; its queued calls are discarded separately."""
        self._interactions.discard(interaction_id)

    def add(self, client: Node, call: Call, seq: int) -> None:
        """Add a queued call of an active interaction."""
        remaining = call.remaining_calls if self._by_progress else 0.0
        self._queued.setdefault(client, Earliest()).add(call.call_id, (remaining, seq))

    def discard(self, client: Node, call_id: str) -> None:
        """Remove a call if present."""
        found = self._queued.get(client)
        if found is not None:
            found.discard(call_id)
            if not found:
                del self._queued[client]

    def in_order(self, within: Within, excluded: Collection[str] = frozenset()) -> Iterator[str]:
        """Yield the first call of each client within the slack, in the order of service.

        Excluded calls are skipped. Ties: the smaller counter, then the earlier arrival.
        """
        firsts: list[tuple[float, tuple[float, ...], int, str]] = []
        for client, calls in self._queued.items():
            first = calls.first_but(excluded) if excluded else calls.first()
            counters = None if first is None else within(client)
            if first is not None and counters is not None:
                (remaining, seq), call_id = first
                firsts.append((remaining, counters, seq, call_id))
        heapify(firsts)
        while firsts:
            yield heappop(firsts)[3]
