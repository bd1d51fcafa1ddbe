"""Deficit longest prefix match (DLPM paper, Algorithm 1): locality within a fairness bound.

Waiting calls are walked by matched prefix length, longest first, ties by arrival. A client may run while
its deficit ``q`` is positive at every level of its path, pays ``we * extend`` at admission and ``wq``
per decoded token; all known siblings at or below zero get the quantum when none that waits is in credit
(:mod:`fairserve.scheduling.feeder.deficits`). ``quantum -> 0`` behaves as VTC with the extend cost,
``quantum -> inf`` as LPM.

The walk is not executed call by call (:mod:`fairserve.scheduling.local.dlpm_order`), and a call is
matched again only on news of its blocks (:mod:`fairserve.scheduling.local.match_groups`). An engine may
stop asking at any point; the next pass begins at the top. Cost: O(levels * log clients) per call
offered, and per client that gains or loses credit; O(calls) in a pass in which nothing in credit fits.

Departures, both options: ``refill_when_stuck`` and ``max_bypass`` (a call that does not fit is passed
over at most so often, then it goes first and the walk stops at it). Charges are divided by the call's
weight.

The paper is not work conserving: clients in credit whose calls do not fit block the refill of the
others. With ``refill_when_stuck`` a client out of credit is then admitted in advance of its refills,
while its deficit is above ``-D`` at every level of its path, ``D = stuck_advance``. Nobody is refilled
for it: the client owes the advance, and the refills to come pay it back. What holds then, among the
siblings of each level, with outputs reserved and ``U = we * Linput + wq * M``:

1. ``q <= Q^u``: only a refill raises a deficit, and only one that is at most 0.
2. ``q >= -(U + D)``: at the last admission of the client the deficit was above ``-D``. Since then it
   was charged for one prompt, and for outputs that were reserved in the memory M together.
3. While f waits, each refill gives it ``Q^u``: there is none while a client that waits has credit. So in
   an interval with k refills ``W_f = k Q^u - (change of q_f)``, and ``W_g <= k Q^u - (change of q_g)``
   for any g, with equality while g waits, too. No deficit changes by more than ``U + Q^u + D``.
4. So ``W_f >= W_g - 2 (U + Q^u + D)`` while f is backlogged, and both ways while both are: Theorems 4.1
   and 4.2 with ``Q^u + D`` in the place of ``Q^u``. D = 0 is the paper's rule and bound.

Weakness: bounds grow with the longest prompt and output of any client, as in every deficit scheme. Past
the advance the worker is not work conserving either: it waits for room, as in the paper.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from fairserve.interactions.call import path_of_id
from fairserve.scheduling.base import LocalCall, PrefixCache
from fairserve.scheduling.cost import check_cached_weight
from fairserve.scheduling.local.dlpm_order import DlpmOrder, Member
from fairserve.scheduling.local.match_groups import MatchedCall
from fairserve.scheduling.local.matched_places import Item, MatchedPlaces


@dataclass(frozen=True, slots=True)
class DlpmOptions:
    """``quantum`` is Q^u in units of the extend cost; ``we`` and ``wq`` are its weights."""

    quantum: float = 5000.0
    we: float = 1.0
    wq: float = 2.0
    cached_weight: float = 0.0
    """Cost of a cached prompt token, as a share of an uncached one; 0 is the paper's."""
    refill_when_stuck: bool = True
    """Whether a client out of credit may run in advance of its refills when no call of a client in
    credit fits; false is the paper's."""
    stuck_advance: float = 5000.0
    """Debt in units of the extend cost, below which it may; it widens the bounds like a quantum."""
    max_bypass: int = 64
    """0 never stops at a call that does not fit (the paper)."""

    def __post_init__(self) -> None:
        if not 0 < self.quantum < math.inf:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, finite")
        if self.we < 0 or self.wq < 0:
            raise ValueError(f"we is {self.we}, wq is {self.wq}; allowed: not negative")
        check_cached_weight(self.cached_weight, None)
        if not 0 <= self.stuck_advance < math.inf:
            raise ValueError(
                f"stuck_advance is {self.stuck_advance}; allowed: not negative, finite"
            )
        if self.max_bypass < 0:
            raise ValueError(f"max_bypass is {self.max_bypass}; allowed: 0 or more")


_EXHAUSTED = 1 << 40
"""Taken from the rank of a call that was passed over as often as is allowed: it goes first."""


class Dlpm:
    """The local scheduler of the DLPM paper."""

    def __init__(self, options: DlpmOptions = DlpmOptions()) -> None:
        self.options = options
        self._arrivals = 0
        self._places = MatchedPlaces(self._placement)
        self._order = DlpmOrder(options.quantum)
        self._calls: dict[str, MatchedCall] = {}
        """Waiting and running."""
        self._offered: MatchedCall | None = None
        self._over = True
        """Whether the pass has come to its end."""
        self._past_stuck: Iterator[MatchedCall] | None = None
        """What is offered when nothing in credit fits."""
        self._admitted = 0
        """Calls that were taken in this pass."""

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._places)

    def deficit(self, client_id: str) -> float:
        """``q`` of a client now, or of an outer level by its id; 0 for one that is not known."""
        return self._order.value(path_of_id(client_id))

    # --- arrivals and ends ------------------------------------------------------------------------

    def add(self, call: LocalCall) -> None:
        """A call arrives; a new client starts at 0. Raises ValueError for an id already here."""
        if call.call_id in self._calls:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        if not call.weight > 0:
            raise ValueError(f"weight is {call.weight}; allowed: over 0")
        self._arrivals += 1
        call.arrival = self._arrivals
        matched = self._calls[call.call_id] = MatchedCall(call)
        matched.client = self._order.arrive(call.path)
        self._places.add(matched)

    def finish(self, call_id: str) -> None:
        """A call ended or was cancelled. Raises KeyError if it is unknown."""
        matched = self._calls.pop(call_id)
        if not matched.running:
            self._places.remove(matched)
            self._order.unwait(matched.client)
            if matched is self._offered:
                self._offered = None
        self._order.end(matched.client)

    def requeue(self, call_id: str) -> None:
        """A running call was preempted: it waits again, at its old place, its prompt paid for."""
        matched = self._calls[call_id]
        if not matched.running:
            raise KeyError(call_id)
        matched.running = False
        matched.bypassed = 0
        self._places.add(matched)
        self._order.wait(matched.client)

    def surplus(self, call_id: str) -> tuple[float, ...]:
        """The debts of its client's levels. Raises KeyError if the call does not run."""
        matched = self._calls[call_id]
        if not matched.running:
            raise KeyError(call_id)
        quantum = self.options.quantum
        return tuple(
            -account.in_round(parent.rounds, quantum)
            for account, parent in reversed(matched.client.line)
        )

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge ``wq`` per token that a running call generated."""
        matched = self._calls[call_id]
        if not matched.running:
            raise KeyError(call_id)
        self._order.charge(matched.client, matched.per_token * tokens)

    # --- the walk of one scheduling step ----------------------------------------------------------

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a step: match what may have changed, then walk in order of matched length."""
        for matched in self._places.passed_over:
            matched.bypassed += self._admitted
        self._admitted = 0
        self._offered = self._past_stuck = None
        self._over = False
        offer = self._order.offer
        for matched in self._places.start_pass(cache):
            offer(matched.client)
        self._order.to_the_top()

    def _placement(self, matched: MatchedCall, matched_tokens: int) -> tuple[list[Item], int]:
        rank = -matched_tokens
        if matched.bypassed and self._exhausted(matched.bypassed):
            rank -= _EXHAUSTED
        return matched.client.calls, rank

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
        matched = self._offered
        assert matched is not None, "accept follows a peek that offered a call"
        self._offered = None
        call, client = matched.call, matched.client
        if self._past_stuck is not None:
            self._past_stuck = None
            self._order.to_the_top()
        self._places.remove(matched)
        self._order.unwait(client)
        self._admitted += 1
        matched.running = True
        if matched.per_token < 0:  # a preempted call paid for its prompt before
            matched.per_token = self.options.wq / call.weight
            cached_tokens = min(cached_tokens, call.prompt_tokens)
            tokens = call.prompt_tokens - (1 - self.options.cached_weight) * cached_tokens
            self._order.charge(client, self.options.we * tokens / call.weight)

    def skip(self) -> None:
        """The offered call does not fit; it is not offered again in this step."""
        matched = self._offered
        assert matched is not None, "skip follows a peek that offered a call"
        self._offered = None
        self._places.pass_over(matched)
        self._over = self._exhausted(matched.bypassed + self._admitted)

    def _look(self) -> MatchedCall | None:
        """Algorithm 1 lines 14-25: the call at which the walk stops next."""
        order = self._order
        if self._past_stuck is None:
            if not self._places.placed:
                return None
            found = order.next_call()
            if found is None:
                order.to_the_top()
                found = order.next_call()
            if found is not None:
                return found
            if not self.options.refill_when_stuck:
                return None
            self._past_stuck = self._walk_past_stuck()
        return next(self._past_stuck, None)

    def _walk_past_stuck(self) -> Iterator[MatchedCall]:
        """Nothing in credit fits: those who may run in advance, the fewest refills away first."""
        clients: dict[tuple[int, ...], dict[Member, None]] = {}
        for client in dict.fromkeys(matched.client for matched in self._calls.values()):
            if client.calls and self._may_advance(client):
                clients.setdefault(self._rounds_to_credit(client), {})[client] = None
        for needed in sorted(clients):
            for _, _, matched in heapq.merge(*[list(client.calls) for client in clients[needed]]):
                if matched.place is not None:  # neither cancelled nor passed over since
                    yield matched

    def _may_advance(self, client: Member) -> bool:
        """Whether it owes less than ``stuck_advance`` at every level."""
        quantum, most = self.options.quantum, self.options.stuck_advance
        return all(
            -account.in_round(parent.rounds, quantum) < most for account, parent in client.line
        )

    def _rounds_to_credit(self, client: Member) -> tuple[int, ...]:
        """Per level, the outermost first."""
        quantum = self.options.quantum
        return tuple(
            0 if account.credit else account.ready(quantum) - parent.rounds
            for account, parent in reversed(client.line)
        )
