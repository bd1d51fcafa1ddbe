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
from typing import Any

from fairserve.scheduling.base import LocalCall, PrefixCache


class MatchedCall:
    """A call of a scheduler that orders by matches: its match and its place while it waits."""

    __slots__ = (
        "bypassed",
        "call",
        "client",
        "following",
        "item",
        "last",
        "matched_tokens",
        "per_token",
        "place",
        "running",
    )

    def __init__(self, call: LocalCall) -> None:
        self.call = call
        self.matched_tokens = -1
        """Below 0 until the first pass in which it waits."""
        self.last: Hashable = None
        self.following: Hashable = None
        """Names of the last block of the match and of the one after it."""
        self.place: list[Item] | None = None
        """The list in which it stands; None for one that is new or was passed over in this pass."""
        self.item: Item = (0, call.arrival, self)
        self.bypassed = 0
        """How often another call was admitted in a pass in which this one did not fit."""
        self.running = False
        """For the scheduler, as are the next two: it was accepted and has not ended."""
        self.client: Any = None
        """What it knows about the client."""
        self.per_token = -1.0
        """What a token that it generates is charged; below 0 until its prompt was charged."""


Item = tuple[int, int, MatchedCall]
"""``(rank, arrival, call)``: lists are in this order, and no two calls arrive at once."""

Placement = Callable[[MatchedCall], tuple[list[Item], int]]
"""The list and the rank of a call, by its match; the lowest rank is first."""


class MatchedQueue:
    """The lists belong to the scheduler, which gives them to its calls by the placement."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._waiting: dict[MatchedCall, None] = {}
        self._unplaced: dict[MatchedCall, None] = {}
        """New calls and those that were passed over: not offered before the next pass."""
        self._watchers: dict[Hashable, dict[MatchedCall, None]] = {}
        """Calls by the two names whose news change their match."""
        self._news: dict[Hashable, int] = {}
        """Names of watched blocks that were stored or evicted since the last pass, and beyond how many
        tokens they were evicted."""
        self._cache: PrefixCache | None = None

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    @property
    def placed(self) -> int:
        """Calls that may be offered in this pass: waiting, not new, not passed over."""
        return len(self._waiting) - len(self._unplaced)

    def add(self, matched: MatchedCall) -> None:
        """A call waits; it is placed at the next pass."""
        matched.matched_tokens = -1
        matched.bypassed = 0
        self._waiting[matched] = None
        self._unplaced[matched] = None

    def remove(self, matched: MatchedCall) -> None:
        """Take a waiting call out."""
        del self._waiting[matched]
        if matched.place is None:
            del self._unplaced[matched]
        else:
            self._displace(matched)
        self._watch(matched, None, None)

    def pass_over(self, matched: MatchedCall) -> None:
        """Set a call aside until the next pass."""
        if matched.place is not None:
            self._displace(matched)
            self._unplaced[matched] = None

    def start_pass(self, cache: PrefixCache) -> list[MatchedCall]:
        """Match what may have changed; returns the calls that were placed now, in any order."""
        if cache is not self._cache:
            self._cache = cache
            cache.follow(self._changed)
            for matched in self._waiting:
                matched.matched_tokens = -1
                self.pass_over(matched)
        match, watch, unplaced = cache.match, self._watch, self._unplaced
        if self._news:
            for matched in self._concerned():
                tokens, last, following = match(matched.call)
                watch(matched, last, following)
                if tokens != matched.matched_tokens:
                    matched.matched_tokens = tokens
                    if matched.place is not None:
                        self._displace(matched)
                        unplaced[matched] = None
        placed = list(unplaced)
        unplaced.clear()
        placement = self._placement
        for matched in placed:
            if matched.matched_tokens < 0:
                matched.matched_tokens, last, following = match(matched.call)
                watch(matched, last, following)
            place, rank = placement(matched)
            matched.place = place
            item = matched.item = (rank, matched.call.arrival, matched)
            if not place or item > place[-1]:
                place.append(item)
            else:
                insort(place, item)
        return placed

    def _changed(self, names: Iterable[Hashable], beyond_tokens: int = -1) -> None:
        news = self._news
        for name in names:
            if name in self._watchers:
                news[name] = min(beyond_tokens, news.get(name, beyond_tokens))

    def _concerned(self) -> list[MatchedCall]:
        """The calls, each once, whose match the news may have changed; the news are dealt with."""
        concerned: dict[MatchedCall, None] = {}
        for name, beyond_tokens in self._news.items():
            for matched in self._watchers.get(name, ()):
                if matched.matched_tokens > beyond_tokens:
                    concerned[matched] = None
        self._news.clear()
        return list(concerned)

    def _watch(self, matched: MatchedCall, last: Hashable, following: Hashable) -> None:
        """Watch for news of these two names, and not for those of before."""
        watchers = self._watchers
        for name in (matched.last, matched.following):
            if name is not None:
                there = watchers[name]
                if len(there) == 1:
                    del watchers[name]
                else:
                    del there[matched]
        matched.last, matched.following = last, following
        for name in (last, following):
            if name is not None:
                if name in watchers:
                    watchers[name][matched] = None
                else:
                    watchers[name] = {matched: None}

    @staticmethod
    def _displace(matched: MatchedCall) -> None:
        place = matched.place
        assert place is not None
        matched.place = None
        del place[0 if place[0] is matched.item else bisect_left(place, matched.item)]
