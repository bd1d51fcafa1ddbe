"""Places of waiting calls in lists sorted by the cached part of their prompts.

This is the order behind LPM, Preble's groups and DLPM: a call's match determines its list and its
rank there. The groups (:mod:`fairserve.scheduling.local.match_groups`) report changed matches.

Cost: O(log calls) comparisons per call that arrives, leaves or changes its match, plus moving
pointers in a list, which matters only beyond 10,000 calls in one list.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from fairserve.scheduling.base import PrefixCache
from fairserve.scheduling.local.match_groups import MatchedCall, MatchGroup, MatchGroups

Item = tuple[int, int, MatchedCall]
"""``(rank, arrival, call)``: lists are sorted by it, and arrivals are unique."""

Placement = Callable[[MatchedCall, int], tuple[list[Item], int]]
"""Maps a call and its matched tokens to its list and its rank there; the lowest is first."""


class MatchedPlaces:
    """Sorted lists of calls. The scheduler owns the lists; its placement assigns calls to them."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._groups = MatchGroups(self)
        self._waiting = 0
        self._fresh: list[MatchedCall] = []
        """Calls that were placed since the pass began."""
        self.passed_over: list[MatchedCall] = []
        """Calls that were skipped in this pass."""
        self.placed = 0
        """Number of calls that may be offered in this pass: waiting, not new, not skipped."""

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return self._waiting

    def add(self, call: MatchedCall) -> None:
        """Add a waiting call; it is placed at the next pass."""
        self._waiting += 1
        self._groups.add(call)

    def remove(self, call: MatchedCall) -> None:
        """Remove a call that no longer waits."""
        self._waiting -= 1
        self._groups.remove(call)

    def pass_over(self, call: MatchedCall) -> None:
        """Set a call aside until the next pass."""
        self.left(call)
        self.passed_over.append(call)

    def start_pass(self, cache: PrefixCache) -> list[MatchedCall]:
        """Update matches that may have changed; return the calls with a new place, in any order."""
        fresh: list[MatchedCall] = []
        self._fresh = fresh
        for call in self.passed_over:
            if call.group is not None:  # otherwise it left
                self.joined(call)
        self.passed_over.clear()
        self._groups.start_pass(cache)
        return fresh

    # --- events of the groups ---------------------------------------------------------------------

    def joined(self, call: MatchedCall) -> None:
        """Place a call by the match of its group."""
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
        """Remove a call from its place, if it has one."""
        place = call.place
        if place is not None:
            call.place = None
            self.placed -= 1
            del place[0 if place[0] is call.item else bisect_left(place, call.item)]

    def moved(self, group: MatchGroup) -> None:
        """Update the places of a group's calls after its match changed."""
        for call in group.calls:
            if call.place is not None:
                self.left(call)
                self.joined(call)
