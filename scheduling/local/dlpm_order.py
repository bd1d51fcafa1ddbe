"""The walk of DLPM over the calls of clients in credit, without visiting the others.

Each client holds its waiting calls in order; each outer level holds its members in credit in a heap
by their first call. A member out of credit leaves the heap when it reaches the top, and returns
when a refill restores its credit. A walk only moves forward, as in Algorithm 1: a client that gains
credit during a walk continues after the call offered last, and its earlier calls wait for the next
walk of the same step.

Cost: O(levels * log clients) per offered call, and per client that gains or loses credit. Weakness:
during a walk a client may thus be offered a later call before an earlier one.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left

from fairserve.interactions.call import ClientPath
from fairserve.scheduling.fairness.deficits import Account, Deficits
from fairserve.scheduling.local.match_groups import MatchedCall
from fairserve.scheduling.local.matched_places import Item

_MANY = 16
"""Number of members gaining credit at once from which the heap is rebuilt instead."""

_Key = tuple[int, int]
"""Rank and arrival: the place of a call in the walk."""

_TOP: _Key = (-(1 << 62), 0)


class Member(Account):
    """A client with its waiting calls, or an outer level with its members in credit, in order."""

    __slots__ = ("calls", "first", "heap")

    parent: Member | None

    def __init__(self, path: ClientPath, parent: Account | None) -> None:
        super().__init__(path, parent)
        self.calls: list[Item] = []
        """Calls of a client that may be offered in this pass."""
        self.heap: list[_Entry] = []
        """Members in credit of an outer level that have calls, at the place of their first call or
        earlier; an entry that is not its member's ``first`` is stale."""
        self.first: _Entry | None = None


_Entry = tuple[int, int, Member]
"""Rank and arrival of a member's first call when the entry was made, and the member."""


class DlpmOrder(Deficits):
    """The deficits, and the next call of the walk among the clients in credit."""

    def __init__(self, quantum: float) -> None:
        super().__init__(quantum)
        self._at: _Key = _TOP
        """Current position of the walk."""
        self._behind: list[Member] = []
        """Clients with calls before the position of the walk when they gained credit."""

    def _make(self, path: ClientPath, parent: Account | None) -> Member:
        return Member(path, parent)

    def _gained(self, parent: Account, accounts: list[Account]) -> None:
        assert isinstance(parent, Member)
        if len(accounts) < _MANY:
            for account in accounts:
                assert isinstance(account, Member)
                self.offer(account)
            return
        for account in accounts:
            assert isinstance(account, Member)
            ordered: list[Item] | list[_Entry] = account.calls or account.heap
            if ordered:
                rank, arrival, _ = ordered[0]
                account.first = (rank, arrival, account)
                parent.heap.append(account.first)
        self._rebuild(parent)
        self.offer(parent)

    @staticmethod
    def _rebuild(level: Member) -> None:
        level.heap = [entry for entry in level.heap if entry[2].first is entry]
        heapq.heapify(level.heap)

    def offer(self, member: Member) -> None:
        """Update the levels above a member whose first call may now be earlier."""
        parent = member.parent
        while parent is not None and member.credit:
            ordered: list[Item] | list[_Entry] = member.calls or member.heap
            if not ordered:
                return
            rank, arrival, _ = ordered[0]
            first = member.first
            if first is not None and (first[0], first[1]) <= (rank, arrival):
                return
            if len(parent.heap) > 2 * parent.in_credit + 64:
                self._rebuild(parent)
            member.first = (rank, arrival, member)
            heapq.heappush(parent.heap, member.first)
            member, parent = parent, parent.parent

    def to_the_top(self) -> None:
        """Restart the walk."""
        self._at = _TOP
        for client in self._behind:
            self.offer(client)
        self._behind.clear()

    def next_call(self) -> MatchedCall | None:
        """Advance to the next call whose client may run, after the refills that are due."""
        if self.starved:
            self.check_refill()
        root = self.root
        assert isinstance(root, Member)
        item = self._next_of(root)
        if item is None:
            return None
        self._at = item[:2]
        return item[2]

    def _next_of(self, level: Member) -> Item | None:
        heap = level.heap
        while heap:
            entry = heap[0]
            member = entry[2]
            if member.first is not entry:
                heapq.heappop(heap)
                continue
            item: Item | None = None
            if member.credit:
                calls = member.calls
                if not calls:
                    item = self._next_of(member)
                elif calls[0] >= self._at:
                    item = calls[0]
                else:
                    self._behind.append(member)
                    index = bisect_left(calls, self._at)
                    item = calls[index] if index < len(calls) else None
            if item is None:
                member.first = None
                heapq.heappop(heap)
            elif item[1] == entry[1] and item[0] == entry[0]:
                return item
            else:
                member.first = (item[0], item[1], member)
                heapq.heapreplace(heap, member.first)
        return None
