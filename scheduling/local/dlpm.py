"""Deficit longest prefix match (DLPM paper, Algorithm 1): locality within a fairness bound.

Waiting calls are walked by matched prefix length, longest first, ties by arrival. A client may run while
its deficit ``q`` is positive at every level of its path, pays ``we * extend`` at admission and ``wq``
per decoded token; all known siblings at or below zero get the quantum when none that waits is in credit
(:mod:`fairserve.scheduling.feeder.deficits`). ``quantum -> 0`` behaves as VTC with the extend cost,
``quantum -> inf`` as LPM.

The walk is not executed call by call. Each client has its waiting calls in order; each outer level has
its members in credit in a heap by their first call; a member that is out of credit is not looked at. A
walk goes forward only: a client that gains credit in mid-walk goes on behind the call offered last, and
what it has before that waits for the next walk of the same step. An engine may stop asking at any point;
the next pass begins at the top. Cost: O(levels * log clients) per call offered, and per client that
gains or loses credit; O(calls) in a pass in which nothing in credit fits.

Departures, both options: ``refill_when_stuck`` (the paper is not work conserving when the calls of the
clients in credit do not fit) and ``max_bypass`` (a call that does not fit is passed over at most so
often, then it goes first and the walk stops at it). Charges are divided by the call's weight.

Weakness: bounds grow with the longest prompt and output of any client, as in every deficit scheme.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from fairserve.interactions.call import ClientPath, path_of_id
from fairserve.scheduling.base import LocalCall, PrefixCache
from fairserve.scheduling.feeder.deficits import Account, Deficits
from fairserve.scheduling.local.matched_queue import Item, MatchedQueue, Waiting


@dataclass(frozen=True, slots=True)
class DlpmOptions:
    """``quantum`` is Q^u in units of the extend cost; ``we`` and ``wq`` are its weights."""

    quantum: float = 5000.0
    we: float = 1.0
    wq: float = 2.0
    refill_when_stuck: bool = True
    max_bypass: int = 16
    """0 never stops at a call that does not fit (the paper)."""

    def __post_init__(self) -> None:
        if not 0 < self.quantum < math.inf:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, finite")
        if self.we < 0 or self.wq < 0:
            raise ValueError(f"we is {self.we}, wq is {self.wq}; allowed: not negative")
        if self.max_bypass < 0:
            raise ValueError(f"max_bypass is {self.max_bypass}; allowed: 0 or more")


_EXHAUSTED = 1 << 40
"""Taken from the rank of a call that was passed over as often as is allowed: it goes first."""

_MANY = 16
"""Members that come into credit at once are put into the heap together from this number on."""

_Key = tuple[int, int]
"""Rank and arrival: the place of a call in the walk."""

_TOP: _Key = (-(1 << 62), 0)


class _Member(Account):
    """A client with its waiting calls, or an outer level with its members in credit, in order."""

    __slots__ = ("calls", "first", "heap")

    parent: _Member | None

    def __init__(self, path: ClientPath, parent: Account | None) -> None:
        super().__init__(path, parent)
        self.calls: list[Item] = []
        """Of a client: what it may be offered in this pass."""
        self.heap: list[_Entry] = []
        """Of an outer level. Each member in credit that has calls is here, at its first call or
        before it; an entry that is not its member's ``first`` is left over."""
        self.first: _Entry | None = None


_Entry = tuple[int, int, _Member]
"""Rank and arrival of a member's first call, as it was when the entry was made, and the member."""


class _Order(Deficits):
    """The deficits, and among the calls of those in credit the one that the walk meets next."""

    def __init__(self, quantum: float) -> None:
        super().__init__(quantum)
        self._at: _Key = _TOP
        """Where the walk is."""
        self._behind: list[_Member] = []
        """Clients with calls that the walk had passed when they gained credit."""

    def _make(self, path: ClientPath, parent: Account | None) -> _Member:
        return _Member(path, parent)

    def _gained(self, parent: Account, accounts: list[Account]) -> None:
        assert isinstance(parent, _Member)
        if len(accounts) < _MANY:
            for account in accounts:
                assert isinstance(account, _Member)
                self.offer(account)
            return
        for account in accounts:
            assert isinstance(account, _Member)
            ordered: list[Item] | list[_Entry] = account.calls or account.heap
            if ordered:
                rank, arrival, _ = ordered[0]
                account.first = (rank, arrival, account)
                parent.heap.append(account.first)
        self._rebuild(parent)
        self.offer(parent)

    @staticmethod
    def _rebuild(level: _Member) -> None:
        level.heap = [entry for entry in level.heap if entry[2].first is entry]
        heapq.heapify(level.heap)

    def offer(self, member: _Member) -> None:
        """A member may have an earlier first call than it had: tell the levels above it."""
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
        """The walk begins anew."""
        self._at = _TOP
        for client in self._behind:
            self.offer(client)
        self._behind.clear()

    def advance(self, waiting: Waiting) -> None:
        """The walk has come to this call."""
        self._at = waiting.item[:2]

    def next_call(self) -> Waiting | None:
        """The next call of the walk whose client may run, after the refills that are due."""
        if self.starved:
            self.refill_starved()
        root = self.root
        assert isinstance(root, _Member)
        item = self._next_of(root)
        return None if item is None else item[2]

    def _next_of(self, level: _Member) -> Item | None:
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


class Dlpm:
    """The local scheduler of the DLPM paper."""

    def __init__(self, options: DlpmOptions = DlpmOptions()) -> None:
        self.options = options
        self._arrivals = 0
        self._queue = MatchedQueue(self._placement)
        self._order = _Order(options.quantum)
        self._clients: dict[str, _Member] = {}
        """Of every call that is here."""
        self._running: dict[str, LocalCall] = {}
        self._charged: set[str] = set()
        """Calls whose prompt was charged: a preempted call pays for it once."""
        self._offered: Waiting | None = None
        self._over = True
        """Whether the pass has come to its end."""
        self._past_stuck: Iterator[Waiting] | None = None
        """What is offered when nothing in credit fits."""
        self._admitted = 0
        self._skipped: list[Waiting] = []
        """What has happened in this pass."""

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._queue)

    def deficit(self, client_id: str) -> float:
        """``q`` of a client now, or of an outer level by its id; 0 for one that is not known."""
        return self._order.value(path_of_id(client_id))

    # --- arrivals and ends ------------------------------------------------------------------------

    def add(self, call: LocalCall) -> None:
        """A call arrives; a new client starts at 0. Raises ValueError for an id already here."""
        if call.call_id in self._clients:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        if not call.weight > 0:
            raise ValueError(f"weight is {call.weight}; allowed: over 0")
        self._arrivals += 1
        call.arrival = self._arrivals
        self._queue.add(call)
        client = self._order.arrive(call.path)
        assert isinstance(client, _Member)
        self._clients[call.call_id] = client

    def finish(self, call_id: str) -> None:
        """A call ended or was cancelled. Raises KeyError if it is unknown."""
        client = self._clients.pop(call_id)
        if self._running.pop(call_id, None) is None:
            if self._queue.remove(call_id) is self._offered:
                self._offered = None
            self._order.unwait(client)
        self._charged.discard(call_id)
        self._order.end(client)

    def requeue(self, call_id: str) -> None:
        """A running call was preempted: it waits again, at its old place, its prompt paid for."""
        self._queue.add(self._running.pop(call_id))
        self._order.wait(self._clients[call_id])

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge ``wq`` per token that a running call generated."""
        cost = self.options.wq * tokens / self._running[call_id].weight
        self._order.charge(self._clients[call_id], cost)

    # --- the walk of one scheduling step ----------------------------------------------------------

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a step: match what may have changed, then walk in order of matched length."""
        for waiting in self._skipped:
            waiting.bypassed += self._admitted
        self._skipped.clear()
        self._admitted = 0
        self._offered = self._past_stuck = None
        self._over = False
        for waiting in self._queue.start_pass(cache):
            self._order.offer(self._clients[waiting.call.call_id])
        self._order.to_the_top()

    def _placement(self, waiting: Waiting) -> tuple[list[Item], int]:
        rank = -waiting.matched_tokens
        if self._exhausted(waiting.bypassed):
            rank -= _EXHAUSTED
        return self._clients[waiting.call.call_id].calls, rank

    def _exhausted(self, bypassed: int) -> bool:
        """Passed over as often as is allowed: nothing overtakes it any more."""
        return 0 < self.options.max_bypass <= bypassed

    def peek(self) -> LocalCall | None:
        """The call offered next, None when the step is over."""
        if self._offered is None:
            if self._over:
                return None
            self._offered = self._look()
            if self._offered is None:
                self._over = True
                return None
        return self._offered.call

    def accept(self, cached_tokens: int) -> None:
        """The offered call runs; charge its extend tokens."""
        waiting = self._offered
        assert waiting is not None, "accept follows a peek that offered a call"
        self._offered = None
        call = waiting.call
        client = self._clients[call.call_id]
        if self._past_stuck is not None:
            self._past_stuck = None
            self._refill_for(client)
            self._order.to_the_top()
        self._queue.remove(call.call_id)
        self._order.unwait(client)
        self._running[call.call_id] = call
        self._admitted += 1
        if call.call_id not in self._charged:
            self._charged.add(call.call_id)
            extend_tokens = max(0, call.prompt_tokens - cached_tokens)
            self._order.charge(client, self.options.we * extend_tokens / call.weight)

    def skip(self) -> None:
        """The offered call does not fit; it is not offered again in this step."""
        waiting = self._offered
        assert waiting is not None, "skip follows a peek that offered a call"
        self._offered = None
        self._queue.pass_over(waiting)
        self._skipped.append(waiting)
        self._over = self._exhausted(waiting.bypassed + self._admitted)

    def _look(self) -> Waiting | None:
        """Algorithm 1 lines 14-25: the call at which the walk stops next."""
        order, queue = self._order, self._queue
        if self._past_stuck is None:
            if not queue.placed:
                return None
            found = order.next_call()
            if found is None:
                order.to_the_top()
                found = order.next_call()
            if found is not None:
                order.advance(found)
                return found
            if not self.options.refill_when_stuck:
                return None
            self._past_stuck = self._walk_past_stuck()
        return next(self._past_stuck, None)

    def _walk_past_stuck(self) -> Iterator[Waiting]:
        """Nothing in credit fits: the others, those first that the fewest refills bring into credit.

        The refill is carried out only when a call is taken, so a full batch refills nobody.
        """
        clients: dict[tuple[int, ...], dict[_Member, None]] = {}
        for client in dict.fromkeys(self._clients.values()):
            if client.calls:
                clients.setdefault(self._rounds_to_credit(client), {})[client] = None
        for needed in sorted(clients):
            for _, _, waiting in heapq.merge(*[list(client.calls) for client in clients[needed]]):
                if waiting.place is not None:  # neither cancelled nor passed over since
                    yield waiting

    def _rounds_to_credit(self, client: _Member) -> tuple[int, ...]:
        """Per level, the outermost first."""
        rounds: list[int] = []
        member = client
        while (parent := member.parent) is not None:
            ready = 0 if member.credit else member.ready(self.options.quantum) - parent.rounds
            rounds.append(ready)
            member = parent
        return tuple(reversed(rounds))

    def _refill_for(self, client: _Member) -> None:
        """Refill, at every level, as if only this client's calls were waiting."""
        member = client
        while (parent := member.parent) is not None:
            if not member.credit:
                self._order.refill_to(parent, member.ready(self.options.quantum))
            member = parent
