"""Waiting calls in sorted lists, placed by how much of their prompt is cached.

A call's match changes only when the last block of its match is evicted or the block after it is stored.
Each call is registered under the names of these two, and news of the cache mark the calls that it
concerns; the next pass matches these and the new ones, and no others. Between two passes a call is
matched at most once, whatever happened; during a pass nothing moves.

Cost: O(log waiting) comparisons per call that comes, goes or has another match (and moving pointers in
a list, which counts only beyond 10,000 calls in one list); one look-up per block that was evicted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable

from fairserve.scheduling.base import LocalCall, PrefixCache


class Waiting:
    """A waiting call, its match, and where it stands."""

    __slots__ = ("bypassed", "call", "following", "item", "last", "matched_tokens", "place")

    def __init__(self, call: LocalCall) -> None:
        self.call = call
        self.matched_tokens = -1
        """Below 0 until the first pass."""
        self.last: Hashable = None
        self.following: Hashable = None
        """Names of the last block of the match and of the one after it."""
        self.place: list[Item] | None = None
        """The list in which it stands; None for one that is new or was passed over in this pass."""
        self.item: Item = (0, call.arrival, self)
        self.bypassed = 0
        """How often another call was admitted in a pass in which this one did not fit."""


Item = tuple[int, int, Waiting]
"""``(rank, arrival, waiting call)``: lists are in this order, and no two calls arrive at once."""

Placement = Callable[[Waiting], tuple[list[Item], int]]
"""The list and the rank of a call, by its match; the lowest rank is first."""


class MatchedQueue:
    """The lists belong to the scheduler, which gives them to its calls by the placement."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._waiting: dict[str, Waiting] = {}
        self._unplaced: dict[Waiting, None] = {}
        """New calls and those that were passed over: not offered before the next pass."""
        self._watchers: dict[Hashable, dict[Waiting, None]] = {}
        """Calls by the two names whose news change their match."""
        self._news: dict[Hashable, int] = {}
        """Names of watched blocks that were stored or evicted since the last pass, and beyond how many
        tokens they were evicted."""
        self._cache: PrefixCache | None = None

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._waiting

    @property
    def placed(self) -> int:
        """Calls that may be offered in this pass: waiting, not new, not passed over."""
        return len(self._waiting) - len(self._unplaced)

    def add(self, call: LocalCall) -> Waiting:
        """A call waits; it is placed at the next pass."""
        waiting = self._waiting[call.call_id] = Waiting(call)
        self._unplaced[waiting] = None
        return waiting

    def remove(self, call_id: str) -> Waiting:
        """Take a call out. Raises KeyError if it does not wait."""
        waiting = self._waiting.pop(call_id)
        if waiting.place is None:
            del self._unplaced[waiting]
        else:
            self._displace(waiting)
        self._unwatch(waiting)
        return waiting

    def pass_over(self, waiting: Waiting) -> None:
        """Set a call aside until the next pass."""
        if waiting.place is not None:
            self._displace(waiting)
            self._unplaced[waiting] = None

    def start_pass(self, cache: PrefixCache) -> list[Waiting]:
        """Match what may have changed; returns the calls that were placed now, in any order."""
        if cache is not self._cache:
            self._cache = cache
            cache.follow(self._changed)
            for waiting in self._waiting.values():
                waiting.matched_tokens = -1
                self.pass_over(waiting)
        concerned: dict[Waiting, None] = {}
        for name, beyond_tokens in self._news.items():
            for waiting in self._watchers.get(name, ()):
                if waiting.matched_tokens > beyond_tokens:
                    concerned[waiting] = None
        self._news.clear()
        for waiting in concerned:
            self._unwatch(waiting)
            before = waiting.matched_tokens
            self._match(waiting, cache)
            if waiting.matched_tokens != before:
                self.pass_over(waiting)
        placed = list(self._unplaced)
        self._unplaced.clear()
        placement = self._placement
        for waiting in placed:
            if waiting.matched_tokens < 0:
                self._match(waiting, cache)
            place, rank = placement(waiting)
            waiting.place = place
            item = waiting.item = (rank, waiting.call.arrival, waiting)
            if place:
                insort(place, item)
            else:
                place.append(item)
        return placed

    def _changed(self, names: Iterable[Hashable], beyond_tokens: int = -1) -> None:
        news = self._news
        for name in names:
            if name in self._watchers:
                news[name] = min(beyond_tokens, news.get(name, beyond_tokens))

    def _match(self, waiting: Waiting, cache: PrefixCache) -> None:
        watchers = self._watchers
        waiting.matched_tokens, last, following = cache.match(waiting.call)
        waiting.last, waiting.following = last, following
        for name in (last, following):
            if name is not None:
                there = watchers.get(name)
                if there is None:
                    watchers[name] = {waiting: None}
                else:
                    there[waiting] = None

    def _unwatch(self, waiting: Waiting) -> None:
        watchers = self._watchers
        for name in (waiting.last, waiting.following):
            if name is not None:
                there = watchers[name]
                if len(there) == 1:
                    del watchers[name]
                else:
                    del there[waiting]
        waiting.last = waiting.following = None

    @staticmethod
    def _displace(waiting: Waiting) -> None:
        place = waiting.place
        assert place is not None
        waiting.place = None
        del place[0 if place[0] is waiting.item else bisect_left(place, waiting.item)]
