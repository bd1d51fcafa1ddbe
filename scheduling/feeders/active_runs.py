"""Queued calls of active interactions, and their order among each other.

A run is active from its first dispatch to its end (FairServe, Algorithm 1 lines 31-38). Of the
clients within the slack, the one with the smallest counter is served, its earliest call.

Below the outermost level the slack may grow with the run (``reach``): what the calls on its longest path
have cost its client is then no reason for it to wait. So if each run of a tenant comes from a new user,
the first calls of newcomers do not precede the next calls of the runs in progress. Calls side by side
give no slack, else a wide run would precede its tenant's others for as long as it is wide; nor does a
run that is longer than usual.

Cost: O(log calls) to add, to remove and to choose, for each doubling of the depth of runs and each
restriction to workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from fairserve.interactions.call import Call, Restriction, size_class
from fairserve.scheduling.fairness.counter_node import CounterNode
from fairserve.scheduling.fairness.falls import Falls
from fairserve.scheduling.fairness.ranking import Ranking, Within


class ActiveRuns:
    """Active interactions, and their queued calls by client."""

    def __init__(self, falls: Falls[CounterNode]) -> None:
        self._falls = falls
        self._interactions: set[str] = set()
        self._queued: dict[tuple[int, Restriction], Ranking] = {}
        """Queued calls by the slack of their runs and by restriction."""
        self._places: dict[str, tuple[tuple[int, Restriction], CounterNode, int]] = {}
        """Place and arrival number of each queued call."""

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._places)

    def __contains__(self, interaction_id: object) -> bool:
        return interaction_id in self._interactions

    @property
    def interactions(self) -> list[str]:
        """Return the ids of the active interactions, in a stable order."""
        return sorted(self._interactions)

    def restore(self, interactions: Iterable[str], falls: Falls[CounterNode]) -> None:
        """Set the active interactions, none of which has a queued call yet."""
        self._falls = falls
        self._interactions = set(interactions)
        self._queued, self._places = {}, {}

    def begin(self, interaction_id: str) -> bool:
        """Make an interaction active; return False if it already was."""
        if interaction_id in self._interactions:
            return False
        self._interactions.add(interaction_id)
        return True

    def end(self, interaction_id: str) -> None:
        """End an interaction; its queued calls are discarded separately."""
        self._interactions.discard(interaction_id)

    def add(self, client: CounterNode, call: Call, seq: int) -> None:
        """Add a queued call of an active interaction; adding it again is allowed."""
        if call.call_id in self._places:
            return
        slack = 1 << size_class(call.run_depth, 1) if call.run_depth else 0
        key = slack, call.restriction
        self._places[call.call_id] = key, client, seq
        ranking = self._queued.get(key)
        if ranking is None:
            ranking = self._queued[key] = Ranking(self._falls)
        ranking.add(client, seq, call.call_id)

    def discard(self, call_id: str) -> None:
        """Remove a call if present."""
        place = self._places.pop(call_id, None)
        if place is None:
            return
        key, client, seq = place
        ranking = self._queued[key]
        ranking.discard(client, seq, call_id)
        if not ranking:
            del self._queued[key]

    def first(
        self, reach: Callable[[int], Within], excluded: Collection[Restriction] = frozenset()
    ) -> str | None:
        """Return the first call of a client within the slack, in the order of service.

        ``reach`` returns the check of clients for the slack of a run, in typical calls. Calls with an
        excluded restriction are skipped. Ties: the smaller counter, then the earlier arrival.
        """
        firsts = [
            first
            for (slack, restriction), ranking in self._queued.items()
            if restriction not in excluded and (first := ranking.first(reach(slack))) is not None
        ]
        return min(firsts)[2] if firsts else None
