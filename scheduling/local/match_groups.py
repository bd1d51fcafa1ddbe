"""Waiting calls grouped by the place in the cache where their match ends, and matched as one.

A call's match changes only when the last block of its match is evicted or the block after it is
stored. Calls whose match ends at the same place form a group: their prompts are equal up to there.
When that place is evicted, all of them match the same shorter prefix, so one of them is matched for
the group. When a block is stored, the calls waiting for this block are matched one by one, since
their prompts may differ after it. New calls are matched at the next pass. Between two passes a call
or group is matched at most once, and only if an event concerns it; during a pass no match changes.

A scheduler's :class:`GroupOrder` receives the changes of groups.

Cost: O(1) look-ups per block of an event; one match per evicted group, or per call whose next block
is stored; a few dictionary operations per call that moves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from fairserve.scheduling.base import LocalCall, PrefixCache

_Match = Callable[[LocalCall], tuple[int, Hashable, Hashable]]


class MatchedCall:
    """Record of a call in a scheduler that orders by matches, from arrival to end."""

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
        """Group of the call; None if it is new or not waiting."""
        self.following: Hashable = None
        """Name of the block after its match."""
        self.bypassed = 0
        """Number of other calls admitted in passes in which this one did not fit."""
        self.running = False
        """True between acceptance and end. This and the next three are set by the scheduler."""
        self.client: Any = None
        """Scheduler's data about the client."""
        self.per_token = -1.0
        """Charge per generated token; negative until the prompt was charged."""
        self.place: Any = None
        """Place in the order; None while the call is not to be offered."""
        self.item: Any = None


class MatchGroup:
    """Calls whose match ends at the same place; changed by :class:`MatchGroups` only."""

    __slots__ = ("calls", "evicted", "last", "tokens")

    def __init__(self, last: Hashable, tokens: int) -> None:
        self.last = last
        """Name of the last block of their match."""
        self.tokens = tokens
        self.evicted = False
        """True if the last block was evicted; the group is matched at the next pass."""
        self.calls: dict[MatchedCall, None] = {}


class GroupOrder(Protocol):
    """A scheduler's order of calls, updated by changes of the groups."""

    def joined(self, call: MatchedCall) -> None:
        """Place a call that joined its group; it is offered from the current pass on."""
        ...

    def left(self, call: MatchedCall) -> None:
        """Remove a call that leaves its group, if it has a place."""
        ...

    def moved(self, group: MatchGroup) -> None:
        """Move the calls of a group that all match ``group.tokens`` now."""
        ...


class MatchGroups:
    """Groups of one scheduler's waiting calls; a listener of the cache."""

    def __init__(self, order: GroupOrder) -> None:
        self._order = order
        self._new: dict[MatchedCall, None] = {}
        self._at: dict[Hashable, dict[int, MatchGroup]] = {}
        """Groups by the name of their last block, then by matched tokens."""
        self._awaiting: dict[Hashable, dict[MatchedCall, None]] = {}
        """Calls by the name of the block that follows their match."""
        self._evicted: list[MatchGroup] = []
        """Groups whose last block was evicted since the last pass. They are no longer in ``_at``,
        so that calls whose match really ends there do not join them."""
        self._stored: dict[Hashable, None] = {}
        """Names of awaited blocks that were stored since the last pass."""
        self._cache: PrefixCache | None = None

    def add(self, call: MatchedCall) -> None:
        """Add a waiting call; it is matched at the next pass."""
        self._new[call] = None

    def remove(self, call: MatchedCall) -> None:
        """Remove a call that no longer waits."""
        if call.group is None:
            del self._new[call]
        else:
            self._leave(call)

    def start_pass(self, cache: PrefixCache) -> None:
        """Match new calls and those affected by events, and notify the order."""
        if cache is not self._cache:
            self._cache = cache
            cache.follow(self)
            groups = [group for at_name in self._at.values() for group in at_name.values()]
            for call in [call for group in groups + self._evicted for call in group.calls]:
                self._leave(call)
                self._new[call] = None
        match = cache.match
        if self._evicted or self._stored:
            self._match_again(match)
        for call in self._new:
            self._join(call, *match(call.call))
        self._new.clear()

    # --- cache events -----------------------------------------------------------------------------

    def changed(self, name: Hashable, beyond_tokens: int = -1) -> None:
        """Handle a stored or evicted block (:class:`~fairserve.scheduling.base.CacheListener`)."""
        if name in self._awaiting:
            self._stored[name] = None
        groups = self._at.get(name)
        if groups is not None:
            for group in [each for each in groups.values() if each.tokens > beyond_tokens]:
                self._drop(group)
                group.evicted = True
                self._evicted.append(group)

    def renamed(self, name: Hashable, other: Hashable, up_to_tokens: int) -> None:
        """Handle renamed blocks (:class:`~fairserve.scheduling.base.CacheListener`)."""
        groups = self._at.get(name, {})
        for group in [group for group in groups.values() if group.tokens <= up_to_tokens]:
            self._drop(group)
            self._put(group, other)

    def _match_again(self, match: _Match) -> None:
        evicted, self._evicted = self._evicted, []
        for group in evicted:
            self._match_group(group, match)
        stored, self._stored = self._stored, {}
        for name in stored:
            for call in list(self._awaiting.get(name, ())):
                self._follow(call, *match(call.call))

    def _match_group(self, group: MatchGroup, match: _Match) -> None:
        """Rematch a group whose last block was evicted, and possibly stored again."""
        calls = list(group.calls)
        if not calls:
            return
        tokens, last, following = match(calls[0].call)
        if tokens < group.tokens:  # their common prefix is longer than that
            for call in calls:
                self._await(call, following)
            group.evicted = False
            group.tokens = tokens
            self._order.moved(group)
            self._put(group, last)
            return
        found = [(tokens, last, following), *[match(call.call) for call in calls[1:]]]
        for call, ends in zip(calls, found, strict=True):
            self._leave(call)
            self._join(call, *ends)

    def _follow(self, call: MatchedCall, tokens: int, last: Hashable, following: Hashable) -> None:
        """Move a call that was matched again."""
        group = call.group
        assert group is not None
        if tokens == group.tokens and last == group.last:
            self._await(call, following)
        else:
            self._leave(call)
            self._join(call, tokens, last, following)

    # --- groups -----------------------------------------------------------------------------------

    def _join(self, call: MatchedCall, tokens: int, last: Hashable, following: Hashable) -> None:
        groups = self._at.setdefault(last, {})
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
        if not group.calls and not group.evicted:
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

    def _put(self, group: MatchGroup, last: Hashable) -> None:
        """Set the end of a group's match; merge it with a group that ends at the same place."""
        group.last = last
        groups = self._at.setdefault(last, {})
        other = groups.get(group.tokens)
        if other is None:
            groups[group.tokens] = group
            return
        if len(other.calls) < len(group.calls):
            group, other = other, group
            groups[other.tokens] = other
        for call in group.calls:
            call.group = other
        other.calls.update(group.calls)
        group.calls = {}
