"""Deficit longest prefix match (DLPM paper, Algorithm 1): locality within a fairness bound.

Waiting calls are walked by matched prefix length, longest first, ties by arrival. A client may run while
its deficit ``q`` is positive at every level of its path, pays ``we * extend`` at admission and ``wq``
per decoded token; all known siblings at or below zero get the quantum when none that waits is in credit
(:mod:`fairserve.scheduling.feeder.deficits`). ``quantum -> 0`` behaves as VTC with the extend cost,
``quantum -> inf`` as LPM.

The walk is not executed call by call (:mod:`fairserve.scheduling.local.dlpm_order`), and a call is
matched again only on news of its blocks (:mod:`fairserve.scheduling.local.matched_queue`). An engine may
stop asking at any point; the next pass begins at the top. Cost: O(levels * log clients) per call
offered, and per client that gains or loses credit; O(calls) in a pass in which nothing in credit fits.

Departures, both options: ``refill_when_stuck`` (the paper is not work conserving when the calls of the
clients in credit do not fit) and ``max_bypass`` (a call that does not fit is passed over at most so
often, then it goes first and the walk stops at it). Charges are divided by the call's weight.

Weakness: bounds grow with the longest prompt and output of any client, as in every deficit scheme.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from fairserve.interactions.call import path_of_id
from fairserve.scheduling.base import LocalCall, PrefixCache
from fairserve.scheduling.local.dlpm_order import DlpmOrder, Member
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


class Dlpm:
    """The local scheduler of the DLPM paper."""

    def __init__(self, options: DlpmOptions = DlpmOptions()) -> None:
        self.options = options
        self._arrivals = 0
        self._queue = MatchedQueue(self._placement)
        self._order = DlpmOrder(options.quantum)
        self._clients: dict[str, Member] = {}
        """Of every call that is here."""
        self._running: dict[str, tuple[LocalCall, Member, float]] = {}
        """With the client, and what a decoded token costs."""
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
        assert isinstance(client, Member)
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
        self._queue.add(self._running.pop(call_id)[0])
        self._order.wait(self._clients[call_id])

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge ``wq`` per token that a running call generated."""
        _, client, per_token = self._running[call_id]
        self._order.charge(client, per_token * tokens)

    # --- the walk of one scheduling step ----------------------------------------------------------

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a step: match what may have changed, then walk in order of matched length."""
        for waiting in self._skipped:
            waiting.bypassed += self._admitted
        self._skipped.clear()
        self._admitted = 0
        self._offered = self._past_stuck = None
        self._over = False
        offer, clients = self._order.offer, self._clients
        for waiting in self._queue.start_pass(cache):
            offer(clients[waiting.call.call_id])
        self._order.to_the_top()

    def _placement(self, waiting: Waiting) -> tuple[list[Item], int]:
        rank = -waiting.matched_tokens
        if waiting.bypassed and self._exhausted(waiting.bypassed):
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
        self._running[call.call_id] = (call, client, self.options.wq / call.weight)
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
        clients: dict[tuple[int, ...], dict[Member, None]] = {}
        for client in dict.fromkeys(self._clients.values()):
            if client.calls:
                clients.setdefault(self._rounds_to_credit(client), {})[client] = None
        for needed in sorted(clients):
            for _, _, waiting in heapq.merge(*[list(client.calls) for client in clients[needed]]):
                if waiting.place is not None:  # neither cancelled nor passed over since
                    yield waiting

    def _rounds_to_credit(self, client: Member) -> tuple[int, ...]:
        """Per level, the outermost first."""
        rounds: list[int] = []
        member = client
        while (parent := member.parent) is not None:
            ready = 0 if member.credit else member.ready(self.options.quantum) - parent.rounds
            rounds.append(ready)
            member = parent
        return tuple(reversed(rounds))

    def _refill_for(self, client: Member) -> None:
        """Refill, at every level, as if only this client's calls were waiting."""
        member = client
        while (parent := member.parent) is not None:
            if not member.credit:
                self._order.refill_to(parent, member.ready(self.options.quantum))
            member = parent
