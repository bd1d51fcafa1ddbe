"""Deficits with counted refills, level by level: DLPM Algorithm 1, lines 3-11 (ALGORITHMS section 5).

Clients are paths of levels. Every prefix of a path has an account with a deficit ``q``, charged for
all calls below it. A refill adds the quantum to every known account at or below zero among
siblings; it is due when some siblings have waiting calls and none of these is in credit. A call may
run if all accounts of its path are in credit. With paths of one level this is Algorithm 1.

Refills are counted, not executed: the number of rounds per group of siblings, and per account the
round at which its deficit was last exact, determine the current deficit in O(1). Waiting accounts
out of credit are listed by the round in which they will be in credit, so that rounds that only
change counts are skipped at once. Cost: O(levels) per charge, O(log rounds ahead) per account that
gains or loses credit. An account first seen starts at 0; one that is idle and in credit can be
forgotten, since a restart at 0 is then no gain.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from fairserve.interactions.call import ClientPath

_SWEEP_MIN = 1024
"""Number of new idle accounts after which all are swept."""


class Account:
    """A client, or an outer level of several. Private to the users of :class:`Deficits`."""

    __slots__ = (
        "busy",
        "children",
        "credit",
        "deficit",
        "in_credit",
        "line",
        "parent",
        "parked",
        "parked_rounds",
        "path",
        "round",
        "rounds",
        "ticket",
        "tickets",
        "waiting",
    )

    def __init__(self, path: ClientPath, parent: Account | None) -> None:
        self.path = path
        self.parent = parent
        """Outer level; None for the root, which has no deficit."""
        self.line: tuple[tuple[Account, Account], ...] = (
            () if parent is None else ((self, parent), *parent.line)
        )
        """Accounts charged for this one, itself first, each with its parent."""
        self.deficit = 0.0
        self.round: int = 0 if parent is None else parent.rounds
        """Round of the siblings at which the deficit was last exact."""
        self.waiting = 0
        """Waiting calls here and below."""
        self.busy = 0
        """Waiting and running calls of a client, or known accounts below an outer level."""
        self.credit = False
        """True while calls wait and the deficit is positive."""
        self.ticket = False
        """True if the account is in its parent's ``parked``."""
        self.rounds: int = 0
        """Number of refills of the accounts one level below."""
        self.in_credit = 0
        """Number of accounts one level below with ``credit``."""
        self.parked: dict[int, list[Account]] = {}
        """Accounts out of credit, by round. The round may be too early, since charges postpone it, and
        the account may no longer wait: both are corrected when a list is read."""
        self.parked_rounds: list[int] = []
        """Keys of ``parked`` as a heap."""
        self.tickets = 0
        """Number of accounts in ``parked``."""

    def in_round(self, round_number: int, quantum: float) -> float:
        """Return the deficit at a round of the siblings. Changes nothing."""
        missed = round_number - self.round
        if missed <= 0 or self.deficit > 0:
            return self.deficit
        return self.deficit + quantum * min(missed, math.floor(-self.deficit / quantum) + 1)

    def ready(self, quantum: float) -> int:
        """Return the siblings' round in which the account is, or will be, in credit."""
        if self.deficit > 0:
            return self.round
        return self.round + math.floor(-self.deficit / quantum) + 1


class Deficits:
    """Accounts of all levels. Subclasses may define their own kind of account, and gained credit."""

    def __init__(self, quantum: float) -> None:
        self.quantum = quantum
        self.root = self._make((), None)
        self.starved: dict[Account, None] = {}
        """Outer levels with waiting calls and no waiting account in credit, where refills are due."""
        self._clients: dict[ClientPath, Account] = {}
        self._outer: dict[ClientPath, Account] = {(): self.root}
        self._sweep_at = _SWEEP_MIN

    # --- CheckRefill (lines 3-7) ------------------------------------------------------------------

    def check_refill(self) -> None:
        """Refill levels where calls wait and none is in credit, until one is in credit (lines 3-7)."""
        while self.starved:
            for parent in list(self.starved):
                self.refill_to(parent, self.next_round(parent))

    def next_round(self, parent: Account) -> int:
        """Return the round in which the first waiting account below, now out of credit, gains it."""
        while True:
            first = parent.parked_rounds[0]
            there = parent.parked[first]
            while there:
                account = there[-1]
                if account.waiting and not account.credit:
                    ready = self._ready(account, parent)
                    if ready <= first:
                        return first
                there.pop()
                account.ticket = False
                parent.tickets -= 1
                if account.waiting and not account.credit:
                    self._park(account, parent)
            heapq.heappop(parent.parked_rounds)
            del parent.parked[first]

    def refill_to(self, parent: Account, round_number: int) -> None:
        """Refill the accounts below up to a round; those that gain credit leave the lists."""
        parent.rounds = max(parent.rounds, round_number)
        while parent.parked_rounds and parent.parked_rounds[0] <= parent.rounds:
            gained: list[Account] = []
            there = parent.parked.pop(heapq.heappop(parent.parked_rounds))
            parent.tickets -= len(there)
            for account in there:
                account.ticket = False
                if account.waiting and not account.credit:
                    if account.in_round(parent.rounds, self.quantum) > 0:
                        gained.append(account)
                    else:
                        self._park(account, parent)
            if gained:
                self._enter_credit(parent, gained)

    def may_run(self, client: Account) -> bool:
        """Return whether a waiting client is in credit at every level, after the refills due now."""
        for account, parent in client.line:
            if not account.credit and (
                parent.in_credit or account.in_round(self.next_round(parent), self.quantum) <= 0
            ):
                return False
        return True

    # --- calls and charges (lines 11-13, 24 and 27) -----------------------------------------------

    def arrive(self, path: ClientPath) -> Account:
        """Add a waiting call of the client, and return the client's account."""
        client = self.known(path)
        client.busy += 1
        self.wait(client)
        return client

    def known(self, path: ClientPath) -> Account:
        """Return the client's account, created with its outer levels if unknown."""
        client = self._clients.get(path)
        if client is None:
            if len(self._clients) + len(self._outer) >= self._sweep_at:
                self._sweep()
            client = self._clients[path] = self._child(path)
        return client

    def _child(self, path: ClientPath) -> Account:
        parent = self._outer.get(path[:-1])
        if parent is None:
            parent = self._outer[path[:-1]] = self._child(path[:-1])
        parent.busy += 1
        return self._make(path, parent)

    def wait(self, client: Account) -> None:
        """Count one more waiting call of the client: a new one, or one that ran."""
        self.root.waiting += 1
        for account, parent in client.line:
            account.waiting += 1
            if account.waiting == 1:
                if account.in_round(parent.rounds, self.quantum) > 0:
                    self._enter_credit(parent, [account])
                else:
                    self._park(account, parent)
                    if not parent.in_credit:
                        self.starved[parent] = None

    def unwait(self, client: Account) -> None:
        """Count one waiting call of the client less."""
        self.root.waiting -= 1
        for account, _ in client.line:
            account.waiting -= 1
        for account, parent in client.line:
            if account.waiting:
                break
            if account.credit:
                self._leave_credit(account, parent)
            if not parent.waiting:
                self.starved.pop(parent, None)

    def end(self, client: Account) -> None:
        """End a call that is not waiting; forget the client if it is idle and in credit."""
        client.busy -= 1
        if not client.busy:
            self._forget(client)

    def charge(self, client: Account, cost: float) -> None:
        """Subtract ``cost`` from every account of the path."""
        self.charge_levels(client, repeat(cost))

    def charge_levels(self, client: Account, costs: Iterable[float]) -> None:
        """Subtract a cost from each account of the path, innermost first."""
        for (account, parent), cost in zip(client.line, costs, strict=False):
            if account.round != parent.rounds:
                account.deficit = account.in_round(parent.rounds, self.quantum)
                account.round = parent.rounds
            deficit = account.deficit = account.deficit - cost
            if deficit <= 0 and account.credit:
                self._park(account, parent)
                self._leave_credit(account, parent)

    # --- accounts out of credit -------------------------------------------------------------------

    def _enter_credit(self, parent: Account, accounts: list[Account]) -> None:
        for account in accounts:
            account.credit = True
        parent.in_credit += len(accounts)
        self.starved.pop(parent, None)
        self._gained(parent, accounts)

    def _leave_credit(self, account: Account, parent: Account) -> None:
        account.credit = False
        parent.in_credit -= 1
        if not parent.in_credit and parent.waiting:
            self.starved[parent] = None

    def _gained(self, parent: Account, accounts: list[Account]) -> None:
        """Handle that accounts below ``parent`` with waiting calls are now in credit."""

    def _ready(self, account: Account, parent: Account) -> int:
        """Return the round to wait for; never the current one, in case a division was rounded."""
        return max(account.ready(self.quantum), parent.rounds + 1)

    def _park(self, account: Account, parent: Account) -> None:
        if account.ticket:
            return  # listed at an earlier round: corrected when that round is reached
        account.ticket = True
        parent.tickets += 1
        ready = self._ready(account, parent)
        there = parent.parked.get(ready)
        if there is None:
            parent.parked[ready] = [account]
            heapq.heappush(parent.parked_rounds, ready)
        else:
            there.append(account)

    @staticmethod
    def _drop_tickets(parent: Account) -> None:
        """Drop forgotten accounts from the lists when they are the majority; keep those that wait."""
        parked: dict[int, list[Account]] = {}
        for round_number, there in parent.parked.items():
            for account in there:
                account.ticket = account.waiting > 0 and not account.credit
            if kept := [account for account in there if account.ticket]:
                parked[round_number] = kept
        parent.parked, parent.parked_rounds = parked, list(parked)
        heapq.heapify(parent.parked_rounds)
        parent.tickets = sum(map(len, parked.values()))

    # --- removal of idle accounts -----------------------------------------------------------------

    def _forget(self, account: Account, at_zero: bool = False) -> None:
        """Forget an idle account in credit, and outer levels that become empty."""
        is_client = self._clients.get(account.path) is account
        known = self._clients if is_client else self._outer
        while (parent := account.parent) is not None and not account.busy:
            deficit = account.in_round(parent.rounds, self.quantum)
            if deficit < 0 or (deficit == 0 and not at_zero):
                return
            del known[account.path]
            parent.busy -= 1
            if parent.tickets > 2 * parent.busy + 64:
                self._drop_tickets(parent)
            account, known = parent, self._outer

    def _sweep(self) -> None:
        """Forget idle accounts that left in debt and were refilled since, and those that left at 0."""
        for account in [*self._clients.values(), *self._outer.values()]:
            if not account.busy and account.parent is not None:
                self._forget(account, at_zero=True)
        self._sweep_at = 2 * (len(self._clients) + len(self._outer)) + _SWEEP_MIN

    # --- state ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of known clients."""
        return len(self._clients)

    def value(self, path: ClientPath) -> float:
        """Return ``q`` of a client or an outer level; 0 if unknown. Changes nothing."""
        account = self._clients.get(path) or self._outer.get(path)
        if account is None or account.parent is None:
            return 0.0
        return account.in_round(account.parent.rounds, self.quantum)

    def _make(self, path: ClientPath, parent: Account | None) -> Account:
        return Account(path, parent)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values; the scheduler restores the calls."""
        return {
            "outer": [
                [list(each.path), each.deficit, each.round, each.rounds]
                for each in self._outer.values()
            ],
            "clients": [
                [list(each.path), each.deficit, each.round] for each in self._clients.values()
            ],
            "sweep_at": self._sweep_at,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot, which has accounts without calls."""
        self.root = self._make((), None)
        self.starved, self._clients, self._outer = {}, {}, {(): self.root}
        self._sweep_at = state["sweep_at"]
        for path, deficit, at, rounds in state["outer"]:
            account = self._outer.get(tuple(path))
            if account is None:
                account = self._outer[tuple(path)] = self._child(tuple(path))
            account.deficit, account.round, account.rounds = deficit, at, rounds
        for path, deficit, at in state["clients"]:
            account = self._clients[tuple(path)] = self._child(tuple(path))
            account.deficit, account.round = deficit, at
