"""Places of waiting calls in sorted lists, by how much of their prompt is cached.

The order behind LPM, Preble's groups and DLPM: which list a call stands in, and its rank there, follow
from its match. The groups (:mod:`fairserve.scheduling.local.match_groups`) tell whose match is another.

Cost: O(log calls) comparisons per call that comes, goes or has another match, and moving pointers in a
list, which counts only beyond 10,000 calls in one list.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from fairserve.scheduling.base import PrefixCache
from fairserve.scheduling.local.match_groups import MatchedCall, MatchGroup, MatchGroups

Item = tuple[int, int, MatchedCall]
"""``(rank, arrival, call)``: lists are in this order, and no two calls arrive at once."""

Placement = Callable[[MatchedCall, int], tuple[list[Item], int]]
"""The list and the rank of a call that matches so many tokens; the lowest rank is first."""


class MatchedPlaces:
    """The lists belong to the scheduler, which gives them to its calls by the placement."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._groups = MatchGroups(self)
        self._waiting = 0
        self._fresh: list[MatchedCall] = []
        """Calls that were put at a place since the pass began."""
        self.passed_over: list[MatchedCall] = []
        """Calls that were set aside in this pass."""
        self.placed = 0
        """Calls that may be offered in this pass: waiting, not new, not passed over."""

    def __len__(self) -> int:
        """Number of waiting calls."""
        return self._waiting

    def add(self, call: MatchedCall) -> None:
        """A call waits; it is placed at the next pass."""
        self._waiting += 1
        self._groups.add(call)

    def remove(self, call: MatchedCall) -> None:
        """A call waits no longer."""
        self._waiting -= 1
        self._groups.remove(call)

    def pass_over(self, call: MatchedCall) -> None:
        """Set a call aside until the next pass."""
        self.left(call)
        self.passed_over.append(call)

    def start_pass(self, cache: PrefixCache) -> list[MatchedCall]:
        """Match what may have changed; returns the calls that have a new place, in any order."""
        fresh: list[MatchedCall] = []
        self._fresh = fresh
        for call in self.passed_over:
            if call.group is not None:  # else it left
                self.joined(call)
        self.passed_over.clear()
        self._groups.start_pass(cache)
        return fresh

    # --- what the groups tell ---------------------------------------------------------------------

    def joined(self, call: MatchedCall) -> None:
        """The call is in its group: it has a place by its match."""
        group = call.group
        assert group is not None
        place, rank = self._placement(call, group.tokens)
        call.place = place
        item = call.item = (rank, call.call.arrival, call)
        if not place or place[-1] < item:
            place.append(item)
        else:
            insort(place, item)
        self.placed += 1
        self._fresh.append(call)

    def left(self, call: MatchedCall) -> None:
        """The call leaves its place, if it has one."""
        place = call.place
        if place is not None:
            call.place = None
            self.placed -= 1
            del place[0 if place[0] is call.item else bisect_left(place, call.item)]

    def moved(self, group: MatchGroup) -> None:
        """The group matches more or less than before."""
        for call in group.calls:
            if call.place is not None:
                self.left(call)
                self.joined(call)
