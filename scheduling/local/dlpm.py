"""Deficit longest prefix match (DLPM paper, Algorithm 1): locality within a fairness bound.

Waiting calls are walked by matched prefix length, longest first; a client may run while its deficit
``q`` is positive, pays ``we * extend`` at admission and ``wq`` per decoded token, and all known clients
at or below zero get the quantum when no waiting client is in credit. ``quantum -> 0`` behaves as VTC
with the extend cost, ``quantum -> inf`` as LPM.

Refills are counted, not executed: a round number, and per client the round at which its ``q`` was last
true; rounds that would only change the counts are jumped over at once. Departures, both options:
``refill_when_stuck`` (the paper is not work conserving when the calls of the clients in credit do not
fit) and ``max_bypass`` (a call that does not fit is passed over at most so often, then the walk stops
at it). Charges are divided by the call's weight.

Weakness: bounds grow with the longest prompt and output of any client, as in every deficit scheme.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field

from fairserve.scheduling.base import LocalCall, PrefixCache


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


_SWEEP_MIN = 1024
"""Idle clients are looked through when there are about this many more."""


@dataclass(slots=True)
class _Client:
    deficit: float = 0.0
    round: int = 0
    waiting: int = 0
    running: int = 0


@dataclass(slots=True)
class _Waiting:
    call: LocalCall
    matched: int = 0
    bypassed: int = 0


@dataclass(slots=True)
class _Pass:
    """What has happened in one scheduling step."""

    limit: int
    admitted: int = 0
    skipped: list[_Waiting] = field(default_factory=list)
    offered: set[int] = field(default_factory=set)

    def exhausted(self, entry: _Waiting) -> bool:
        """Passed over as often as is allowed: nothing overtakes it any more."""
        return bool(self.limit) and entry.bypassed >= self.limit


class Dlpm:
    """The local scheduler of the DLPM paper."""

    def __init__(self, options: DlpmOptions = DlpmOptions()) -> None:
        self.options = options
        self._arrivals = 0
        self._round = 0
        self._clients: dict[str, _Client] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._running: dict[str, LocalCall] = {}
        self._charged: set[str] = set()
        """Calls whose prompt was charged: a preempted call pays for it once."""
        self._credit: set[str] = set()
        """Clients with a waiting call and a positive deficit."""
        self._cache_version: int | None = None
        self._unmatched: dict[str, _Waiting] = {}
        self._walk: Generator[LocalCall, int | None, None] | None = None
        self._offered: LocalCall | None = None
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    def deficit(self, client_id: str) -> float:
        """``q`` of a client now; 0 for one that is not known."""
        client = self._clients.get(client_id)
        return 0.0 if client is None else self._settle(client).deficit

    # --- arrivals and ends ------------------------------------------------------------------------

    def add(self, call: LocalCall) -> None:
        """A call arrives; a new client starts at 0. Raises ValueError for an id already here."""
        if call.call_id in self._waiting or call.call_id in self._running:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        if not call.weight > 0:
            raise ValueError(f"weight is {call.weight}; allowed: over 0")
        self._arrivals += 1
        call.arrival = self._arrivals
        self._enqueue(call)

    def _enqueue(self, call: LocalCall) -> None:
        entry = _Waiting(call)
        self._waiting[call.call_id] = entry
        self._unmatched[call.call_id] = entry
        client = self._clients.get(call.client_id)
        if client is None:
            if len(self._clients) >= self._sweep_at:
                self._sweep()
            client = self._clients[call.client_id] = _Client(round=self._round)
        client.waiting += 1
        if self._settle(client).deficit > 0:
            self._credit.add(call.client_id)

    def finish(self, call_id: str) -> None:
        """A call ended or was cancelled. Raises KeyError if it is unknown."""
        call = self._running.pop(call_id, None)
        if call is not None:
            self._clients[call.client_id].running -= 1
        else:
            call = self._waiting[call_id].call
            self._leave_queue(call)
        self._charged.discard(call_id)
        self._forget_if_harmless(call.client_id)

    def requeue(self, call_id: str) -> None:
        """A running call was preempted: it waits again, at its old place, its prompt paid for."""
        call = self._running.pop(call_id)
        self._clients[call.client_id].running -= 1
        self._enqueue(call)

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge ``wq`` per token that a running call generated."""
        call = self._running[call_id]
        self._charge(call, self.options.wq * tokens)

    # --- the walk of one scheduling step ----------------------------------------------------------

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a step: match what may have changed, then walk in order of matched length."""
        if cache.version != self._cache_version:
            self._cache_version = cache.version
            for entry in self._waiting.values():
                entry.matched = cache.matched_tokens(entry.call)
        else:
            for entry in self._unmatched.values():
                entry.matched = cache.matched_tokens(entry.call)
        self._unmatched.clear()
        self._walk = self._walk_queue()
        self._offered = next(self._walk, None)

    def peek(self) -> LocalCall | None:
        """The call offered next, None when the step is over."""
        offered = self._offered
        if offered is not None and offered.call_id not in self._waiting:  # cancelled meanwhile
            self._advance(None)
            return self.peek()
        return offered

    def accept(self, cached_tokens: int) -> None:
        """The offered call runs; charge its extend tokens."""
        self._advance(cached_tokens)

    def skip(self) -> None:
        """The offered call does not fit; it is not offered again in this step."""
        self._advance(None)

    def _advance(self, cached_tokens: int | None) -> None:
        assert self._walk is not None
        try:
            self._offered = self._walk.send(cached_tokens)
        except StopIteration:
            self._offered = None

    def _walk_queue(self) -> Generator[LocalCall, int | None, None]:
        """Algorithm 1 lines 14-29. Yields a call, is sent its cached tokens or None (no room)."""
        walk = _Pass(limit=self.options.max_bypass)
        order = sorted(
            self._waiting.values(),
            key=lambda e: (not walk.exhausted(e), -e.matched, e.call.arrival),
        )
        while order:
            admitted = False
            left: list[_Waiting] = []
            for entry in order:
                if entry.call.call_id not in self._waiting:  # cancelled since
                    continue
                if entry.call.client_id not in self._credit:
                    self._check_refill()
                if entry.call.client_id not in self._credit:
                    left.append(entry)
                    continue
                if (yield from self._offer(entry, walk, refill_rounds=0)):
                    admitted = True
                elif walk.exhausted(entry):
                    return
            order = left
            unoffered = any(entry.call.client_id in self._credit for entry in left)
            if not admitted and not unoffered:
                if not self.options.refill_when_stuck:
                    return
                if not (yield from self._offer_past_stuck(order, walk)):
                    return
                order = [entry for entry in order if id(entry) not in walk.offered]

    def _offer(
        self, entry: _Waiting, walk: _Pass, refill_rounds: int
    ) -> Generator[LocalCall, int | None, bool]:
        """Offer one call. When it is taken, refill first, then charge it. True if it was taken."""
        walk.offered.add(id(entry))
        cached_tokens = yield entry.call
        if cached_tokens is None:
            entry.bypassed += walk.admitted
            walk.skipped.append(entry)
            return False
        if refill_rounds:
            self._refill(refill_rounds)
        self._admit(entry.call, cached_tokens)
        walk.admitted += 1
        for passed in walk.skipped:
            passed.bypassed += 1
        return True

    def _offer_past_stuck(
        self, left: list[_Waiting], walk: _Pass
    ) -> Generator[LocalCall, int | None, bool]:
        """Nothing in credit fits: is there a call that would fit after a refill?

        The refill is carried out only when a call is taken, so a full batch refills nobody.
        """
        while left:
            needed = {entry.call.client_id: 0 for entry in left}
            for client_id in needed:
                needed[client_id] = self._rounds_to_credit(self._clients[client_id])
            rounds = min(needed.values())
            later: list[_Waiting] = []
            for entry in left:
                if entry.call.call_id not in self._waiting:
                    continue
                if needed[entry.call.client_id] > rounds:
                    later.append(entry)
                elif (yield from self._offer(entry, walk, rounds)):
                    return True
                elif walk.exhausted(entry):
                    return False
            left = later
        return False

    def _check_refill(self) -> None:
        """Algorithm 1 lines 3-11: refill all at or below zero, if no waiting client is in credit.

        Jumps over the rounds in which no waiting client would come into credit. Cost O(known
        clients), once per change of credit.
        """
        if not self._credit:
            waiting = (client for client in self._clients.values() if client.waiting)
            self._refill(min(self._rounds_to_credit(client) for client in waiting))

    def _rounds_to_credit(self, client: _Client) -> int:
        return math.floor(-self._settle(client).deficit / self.options.quantum) + 1

    def _refill(self, rounds: int) -> None:
        """So many rounds for every known client; each is settled when it is next looked at."""
        self._round += rounds
        for client_id, client in self._clients.items():
            if client.waiting and self._settle(client).deficit > 0:
                self._credit.add(client_id)

    # --- parts ------------------------------------------------------------------------------------

    def _admit(self, call: LocalCall, cached_tokens: int) -> None:
        self._leave_queue(call)
        self._clients[call.client_id].running += 1
        self._running[call.call_id] = call
        if call.call_id not in self._charged:
            self._charged.add(call.call_id)
            self._charge(call, self.options.we * max(0, call.prompt_tokens - cached_tokens))

    def _leave_queue(self, call: LocalCall) -> None:
        del self._waiting[call.call_id]
        self._unmatched.pop(call.call_id, None)
        client = self._clients[call.client_id]
        client.waiting -= 1
        if not client.waiting:
            self._credit.discard(call.client_id)

    def _charge(self, call: LocalCall, cost: float) -> None:
        client = self._settle(self._clients[call.client_id])
        client.deficit -= cost / call.weight
        if client.deficit <= 0:
            self._credit.discard(call.client_id)

    def _settle(self, client: _Client) -> _Client:
        """Carry out the refills since the client was last looked at."""
        rounds = self._round - client.round
        if rounds:
            client.round = self._round
            if client.deficit <= 0:
                quantum = self.options.quantum
                client.deficit += quantum * min(rounds, math.floor(-client.deficit / quantum) + 1)
        return client

    def _forget_if_harmless(self, client_id: str) -> None:
        """An idle client in credit may be forgotten: coming back at 0 is then no gain."""
        if self._harmless(self._clients[client_id]):
            del self._clients[client_id]

    def _harmless(self, client: _Client) -> bool:
        idle = not client.waiting and not client.running
        return idle and self._settle(client).deficit > 0

    def _sweep(self) -> None:
        """Forget those who left in debt and have been refilled since."""
        self._clients = {k: c for k, c in self._clients.items() if not self._harmless(c)}
        self._sweep_at = 2 * len(self._clients) + _SWEEP_MIN
