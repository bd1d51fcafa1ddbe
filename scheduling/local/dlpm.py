"""Deficit longest prefix match (DLPM paper, Algorithm 1): locality within a fairness bound.

``q_i`` is the deficit of client i, ``Q^u`` the quantum. The lines of Algorithm 1 and their methods:

    3-7    CheckRefill: if no client with a waiting call has q > 0, every       Deficits.check_refill
           known client with q <= 0 gets q + Q^u
    11-13  a call of client i arrives; a new client starts at q_i = 0           Dlpm.add
    16     sort the queue by matched prefix length, longest first               Dlpm.start_pass
    18-21  walk the queue: CheckRefill, stop at the next call with q_i > 0      Dlpm.peek
    22     if it fits, else it is skipped                                       the engine, Dlpm.skip
    23-25  run it: q_i <- q_i - we * extend_length(r)                           Dlpm.accept
    27     q_i <- q_i - wq for each decoded token                               Dlpm.decoded

With levels a call may run while ``q`` is positive at every level of its client's path, and
CheckRefill applies among siblings (:mod:`fairserve.scheduling.fairness.deficits`). The call's
weight divides its charges. ``quantum -> 0`` behaves as VTC with the extend cost, ``quantum -> inf``
as LPM.

Departures, both options (:mod:`fairserve.scheduling.local.dlpm_options`): ``refill_when_stuck``;
and ``max_bypass``, the number of calls that may overtake a call that does not fit. Once it is
reached, the call goes first and the walk stops at it.

The walk skips clients out of credit without visiting their calls (``dlpm_order``), and a call is
matched again only after one of its blocks is stored or evicted (``match_groups``). An engine may
stop at any point; the next pass begins at the top. Cost: O(levels * log clients) per offered call,
and per client that gains or loses credit; O(calls) in a pass in which nothing in credit fits.

Weakness: the bounds grow with the longest prompt and output of any client, as in every deficit
scheme. Beyond ``stuck_advance`` the scheduler is not work conserving, as in the paper.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from fairserve.interactions.call import path_of_id
from fairserve.scheduling.base import LocalCall, PrefixCache
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.local.dlpm_order import DlpmOrder, Member
from fairserve.scheduling.local.match_groups import MatchedCall
from fairserve.scheduling.local.matched_places import Item, MatchedPlaces

_EXHAUSTED = 1 << 40
"""Subtracted from the rank of a call that reached ``max_bypass``, so that it goes first."""


class Dlpm:
    """The local scheduler of the DLPM paper."""

    def __init__(self, options: DlpmOptions = DlpmOptions()) -> None:
        self.options = options
        self._arrivals = 0
        self._places = MatchedPlaces(self._placement)
        self._order = DlpmOrder(options.quantum)
        self._calls: dict[str, MatchedCall] = {}
        """Waiting and running calls by id."""
        self._offered: MatchedCall | None = None
        self._over = True
        """True once the pass has ended."""
        self._past_stuck: Iterator[MatchedCall] | None = None
        """Calls to offer when nothing in credit fits."""
        self._admitted = 0
        """Number of calls admitted in this pass."""

    # --- Algorithm 1 ------------------------------------------------------------------------------

    def add(self, call: LocalCall) -> None:
        """Queue a call; a new client starts at 0 (lines 11-13). Raises ValueError for a known id."""
        if call.call_id in self._calls:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        if not call.weight > 0:
            raise ValueError(f"weight is {call.weight}; allowed: over 0")
        self._arrivals += 1
        call.arrival = self._arrivals
        matched = self._calls[call.call_id] = MatchedCall(call)
        matched.client = self._order.arrive(call.path)
        self._places.add(matched)

    def start_pass(self, cache: PrefixCache) -> None:
        """Sort by matched prefix length (line 16); recompute only matches that may have changed."""
        for matched in self._places.passed_over:
            matched.bypassed += self._admitted
        self._admitted = 0
        self._offered = self._past_stuck = None
        self._over = False
        offer = self._order.offer
        for matched in self._places.start_pass(cache):
            offer(matched.client)
        self._order.to_the_top()

    def peek(self) -> LocalCall | None:
        """Return the next call of a client in credit (lines 18-21); None ends the step."""
        if self._offered is None:
            if self._over:
                return None
            self._offered = self._next_in_credit() or self._next_past_stuck()
            if self._offered is None:
                self._over = True
                return None
        return self._offered.call

    def _next_in_credit(self) -> MatchedCall | None:
        """Continue the walk; at the end of the queue, walk once more from the top (lines 17-21)."""
        if self._past_stuck is not None or not self._places.placed:
            return None
        found = self._order.next_call()
        if found is None:
            self._order.to_the_top()
            found = self._order.next_call()
        return found

    def skip(self) -> None:
        """Skip the offered call, which does not fit, until the next step (line 22)."""
        matched = self._offered
        assert matched is not None, "skip follows a peek that offered a call"
        self._offered = None
        self._places.pass_over(matched)
        self._over = self._exhausted(matched.bypassed + self._admitted)

    def accept(self, cached_tokens: int) -> None:
        """Run the offered call and charge its client ``we`` per extend token (lines 23-25)."""
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
        if matched.per_token < 0:  # a preempted call has paid for its prompt
            matched.per_token = self.options.wq / call.weight
            cached_tokens = min(cached_tokens, call.prompt_tokens)
            tokens = call.prompt_tokens - (1 - self.options.cached_weight) * cached_tokens
            self._order.charge(client, self.options.we * tokens / call.weight)

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge ``wq`` per token generated by a running call (line 27). KeyError if not running."""
        matched = self._calls[call_id]
        if not matched.running:
            raise KeyError(call_id)
        self._order.charge(matched.client, matched.per_token * tokens)

    # --- ends and preemptions ---------------------------------------------------------------------

    def finish(self, call_id: str) -> None:
        """Remove a call that ended or was cancelled. Raises KeyError if unknown."""
        matched = self._calls.pop(call_id)
        if not matched.running:
            self._places.remove(matched)
            self._order.unwait(matched.client)
            if matched is self._offered:
                self._offered = None
        self._order.end(matched.client)

    def requeue(self, call_id: str) -> None:
        """Requeue a preempted call at its old place, with its prompt paid. KeyError if not running."""
        matched = self._calls[call_id]
        if not matched.running:
            raise KeyError(call_id)
        matched.running = False
        matched.bypassed = 0
        self._places.add(matched)
        self._order.wait(matched.client)

    # --- state ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self._places)

    def deficit(self, client_id: str) -> float:
        """Return ``q`` of a client, or of an outer level by its id; 0 if unknown."""
        return self._order.value(path_of_id(client_id))

    def surplus(self, call_id: str) -> tuple[float, ...]:
        """Return the debts of its client's levels. Raises KeyError if the call is not running."""
        matched = self._calls[call_id]
        if not matched.running:
            raise KeyError(call_id)
        quantum = self.options.quantum
        return tuple(
            -account.in_round(parent.rounds, quantum)
            for account, parent in reversed(matched.client.line)
        )

    # --- departures: max_bypass and refill_when_stuck ---------------------------------------------

    def _placement(self, matched: MatchedCall, matched_tokens: int) -> tuple[list[Item], int]:
        rank = -matched_tokens
        if matched.bypassed and self._exhausted(matched.bypassed):
            rank -= _EXHAUSTED
        return matched.client.calls, rank

    def _exhausted(self, bypassed: int) -> bool:
        """Return whether a call was overtaken as often as ``max_bypass`` allows."""
        return 0 < self.options.max_bypass <= bypassed

    def _next_past_stuck(self) -> MatchedCall | None:
        """Return the next call of a client out of credit, if nothing in credit fits."""
        if self._past_stuck is None:
            if not self._places.placed or not self.options.refill_when_stuck:
                return None
            self._past_stuck = self._walk_past_stuck()
        return next(self._past_stuck, None)

    def _walk_past_stuck(self) -> Iterator[MatchedCall]:
        """Yield calls that may run in advance of their client's refills, the fewest refills first."""
        clients: dict[tuple[int, ...], dict[Member, None]] = {}
        for client in dict.fromkeys(matched.client for matched in self._calls.values()):
            if client.calls and self._may_advance(client):
                clients.setdefault(self._rounds_to_credit(client), {})[client] = None
        for needed in sorted(clients):
            for _, _, matched in heapq.merge(*[list(client.calls) for client in clients[needed]]):
                if matched.place is not None:  # neither cancelled nor skipped since
                    yield matched

    def _may_advance(self, client: Member) -> bool:
        """Return whether the client owes less than ``stuck_advance`` at every level."""
        quantum, most = self.options.quantum, self.options.stuck_advance
        return all(
            -account.in_round(parent.rounds, quantum) < most for account, parent in client.line
        )

    def _rounds_to_credit(self, client: Member) -> tuple[int, ...]:
        """Return the number of refills to credit at each level, outermost first."""
        quantum = self.options.quantum
        return tuple(
            0 if account.credit else account.ready(quantum) - parent.rounds
            for account, parent in reversed(client.line)
        )
