"""Waiting calls in groups by where in the cache their match ends; a group is matched as one.

A call's match changes only when the last block of its match is evicted or the block after it is stored.
Calls whose match ends at the same place are a group: they agree up to there. When that place is evicted
all of them match the same shorter prefix, so one of them is matched for the group; when a block is
stored, the calls that wait for this very block are matched one by one, since they may part behind it.
New calls are matched at the next pass. Between two passes a call or group is matched at most once for
each such piece of news, and nobody whom they do not concern; during a pass no match changes.

What the groups are for belongs to the scheduler, which is told as a :class:`GroupOrder`.

Cost: O(1) look-ups per block in the news; one match for a group that is evicted, or a call whose next
block is stored; a few dictionary operations per call that moves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from fairserve.scheduling.base import LocalCall, PrefixCache

_ALL_TOKENS = 1 << 62

_Match = Callable[[LocalCall], tuple[int, Hashable, Hashable]]


class MatchedCall:
    """A call of a scheduler that orders by matches, from its arrival to its end."""

    __slots__ = (
        "bypassed",
        "call",
        "client",
        "following",
        "group",
        "item",
        "per_token",
        "place",
        "running",
    )

    def __init__(self, call: LocalCall) -> None:
        self.call = call
        self.group: MatchGroup | None = None
        """None for one that is new or does not wait."""
        self.following: Hashable = None
        """Name of the block after its match."""
        self.bypassed = 0
        """How often another call was admitted in a pass in which this one did not fit."""
        self.running = False
        """For the scheduler, as are the others: it was accepted and has not ended."""
        self.client: Any = None
        """What it knows about the client."""
        self.per_token = -1.0
        """What a token that it generates is charged; below 0 until its prompt was charged."""
        self.place: Any = None
        """Where it stands in the order; None while it is not to be offered."""
        self.item: Any = None


class MatchGroup:
    """Calls whose match ends at the same place. To be changed by :class:`MatchGroups` only."""

    __slots__ = ("calls", "last", "tokens")

    def __init__(self, last: Hashable, tokens: int) -> None:
        self.last = last
        """Name of the last block of their match."""
        self.tokens = tokens
        self.calls: dict[MatchedCall, None] = {}


class GroupOrder(Protocol):
    """The order of a scheduler, which follows its groups."""

    def joined(self, call: MatchedCall) -> None:
        """The call is in its group now, to be offered from the present pass on."""
        ...

    def left(self, call: MatchedCall) -> None:
        """The call leaves its group, if it has a place."""
        ...

    def moved(self, group: MatchGroup) -> None:
        """All of the group match ``group.tokens`` now."""
        ...


class MatchGroups:
    """The groups of one scheduler's waiting calls; it is what the cache tells its news."""

    def __init__(self, order: GroupOrder) -> None:
        self._order = order
        self._new: dict[MatchedCall, None] = {}
        self._at: dict[Hashable, dict[int, MatchGroup]] = {}
        """Groups by the name of their last block, and by their tokens."""
        self._awaiting: dict[Hashable, dict[MatchedCall, None]] = {}
        """Calls by the name of the block that follows their match."""
        self._news: dict[Hashable, int] = {}
        """Names of blocks that were stored or evicted since the last pass, and beyond how many tokens
        they were evicted."""
        self._cache: PrefixCache | None = None

    def add(self, call: MatchedCall) -> None:
        """A call waits; it is matched at the next pass."""
        self._new[call] = None

    def remove(self, call: MatchedCall) -> None:
        """A call waits no longer."""
        if call.group is None:
            del self._new[call]
        else:
            self._leave(call)

    def start_pass(self, cache: PrefixCache) -> None:
        """Match what is new and what the news concern, and tell the order."""
        if cache is not self._cache:
            self._cache = cache
            cache.follow(self)
            for groups in list(self._at.values()):
                for call in [call for group in groups.values() for call in group.calls]:
                    self._leave(call)
                    self._new[call] = None
        match = cache.match
        if self._news:
            self._take_news(match)
        for call in self._new:
            self._join(call, *match(call.call))
        self._new.clear()

    # --- news -------------------------------------------------------------------------------------

    def changed(self, name: Hashable, beyond_tokens: int = -1) -> None:
        """See :class:`~fairserve.scheduling.base.CacheNews`."""
        if name in self._awaiting or name in self._at:
            news = self._news
            if beyond_tokens < news.get(name, _ALL_TOKENS):
                news[name] = beyond_tokens

    def renamed(self, name: Hashable, other: Hashable, up_to_tokens: int) -> None:
        """See :class:`~fairserve.scheduling.base.CacheNews`."""
        groups = self._at.get(name, {})
        for group in [group for group in groups.values() if group.tokens <= up_to_tokens]:
            self._rename(group, other, group.tokens)
            if name in self._news:
                self.changed(other, self._news[name])

    def _take_news(self, match: _Match) -> None:
        news, self._news = self._news, {}
        for name, beyond_tokens in news.items():
            groups = self._at.get(name)
            if groups is not None:
                for group in [each for each in groups.values() if each.tokens > beyond_tokens]:
                    self._match_group(group, match)
            calls = self._awaiting.get(name)
            if calls is not None:
                for call in list(calls):
                    self._follow(call, *match(call.call))

    def _match_group(self, group: MatchGroup, match: _Match) -> None:
        """The place where its match ended was evicted, and perhaps stored again."""
        calls = list(group.calls)
        if not calls:
            return  # merged with another one meanwhile
        tokens, last, following = match(calls[0].call)
        if tokens < group.tokens:  # they agree on more than that
            for call in calls:
                self._await(call, following)
            self._rename(group, last, tokens)
        else:
            self._follow(calls[0], tokens, last, following)
            for call in calls[1:]:
                self._follow(call, *match(call.call))

    def _follow(self, call: MatchedCall, tokens: int, last: Hashable, following: Hashable) -> None:
        """The call was matched again."""
        group = call.group
        assert group is not None
        if tokens == group.tokens and last == group.last:
            self._await(call, following)
        else:
            self._leave(call)
            self._join(call, tokens, last, following)

    # --- groups -----------------------------------------------------------------------------------

    def _join(self, call: MatchedCall, tokens: int, last: Hashable, following: Hashable) -> None:
        groups = self._at.get(last)
        if groups is None:
            groups = self._at[last] = {}
        group = groups.get(tokens)
        if group is None:
            group = groups[tokens] = MatchGroup(last, tokens)
        group.calls[call] = None
        call.group = group
        if following is not None:
            self._await(call, following)
        self._order.joined(call)

    def _leave(self, call: MatchedCall) -> None:
        group = call.group
        assert group is not None
        self._order.left(call)
        del group.calls[call]
        if not group.calls:
            self._drop(group)
        if call.following is not None:
            self._await(call, None)
        call.group = None

    def _drop(self, group: MatchGroup) -> None:
        groups = self._at[group.last]
        del groups[group.tokens]
        if not groups:
            del self._at[group.last]

    def _await(self, call: MatchedCall, following: Hashable) -> None:
        awaiting, before = self._awaiting, call.following
        if before is not None:
            calls = awaiting[before]
            if len(calls) == 1:
                del awaiting[before]
            else:
                del calls[call]
        call.following = following
        if following is not None:
            if following in awaiting:
                awaiting[following][call] = None
            else:
                awaiting[following] = {call: None}

    def _rename(self, group: MatchGroup, last: Hashable, tokens: int) -> None:
        """The match of a group ends elsewhere; where others are there, they become one group."""
        self._drop(group)
        if tokens != group.tokens:
            group.tokens = tokens
            self._order.moved(group)
        group.last = last
        groups = self._at.setdefault(last, {})
        other = groups.get(tokens)
        if other is None:
            groups[tokens] = group
            return
        if len(other.calls) < len(group.calls):
            group, other = other, group
            groups[tokens] = other
        for call in group.calls:
            call.group = other
        other.calls.update(group.calls)
        group.calls = {}
