"""Deficits with counted refills: the arithmetic of DLPM Algorithm 1, lines 3-11 (ALGORITHMS section 5).

A refill gives the quantum to every known client at or below zero. It is counted, not executed: a round
number, and per client the round at which its deficit was last true give the deficit now in O(1). A
client first seen starts at 0; one that is idle and in credit may be forgotten, since coming back at 0
is then no gain.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from typing import Any

_SWEEP_MIN = 1024
"""Idle clients are looked through when there are about this many more."""


class Deficits:
    """``q`` of every client, in cost units."""

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._round = 0
        self._known: dict[str, tuple[float, int]] = {}
        """Deficit, and the round at which it was that."""
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        """Known clients."""
        return len(self._known)

    def value(self, client: str, rounds_ahead: int = 0) -> float:
        """``q`` after so many more rounds. Changes nothing."""
        deficit, at = self._known.get(client, (0.0, self._round))
        rounds = self._round + rounds_ahead - at
        if deficit > 0 or not rounds:
            return deficit
        return deficit + self._quantum * min(rounds, self._to_credit(deficit))

    def _to_credit(self, deficit: float) -> int:
        return 0 if deficit > 0 else math.floor(-deficit / self._quantum) + 1

    def rounds_to_credit(self, clients: Iterable[str]) -> int:
        """Rounds until the first of these is in credit: 0 if one is. At least one client."""
        return min(self._to_credit(self.value(client)) for client in clients)

    def refill(self, rounds: int) -> None:
        """So many rounds for all known clients."""
        self._round += rounds

    def charge(self, client: str, cost: float) -> None:
        """Take ``cost`` from a client, known or new."""
        self._known[client] = (self.value(client) - cost, self._round)

    def arrive(self, client: str, busy: Container[str]) -> None:
        """Know a client from now on. ``busy`` clients are never forgotten."""
        if client not in self._known:
            if len(self._known) >= self._sweep_at:
                self._sweep(busy)
            self._known[client] = (0.0, self._round)

    def _sweep(self, busy: Container[str]) -> None:
        for client in [c for c in self._known if c not in busy and self.value(c) > 0]:
            del self._known[client]
        self._sweep_at = 2 * len(self._known) + _SWEEP_MIN

    def idle(self, client: str) -> None:
        """A client has nothing queued or running: forget it if it is in credit."""
        if self.value(client) > 0:
            self._known.pop(client, None)

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values."""
        return {
            "round": self._round,
            "known": [[client, *at] for client, at in self._known.items()],
            "sweep_at": self._sweep_at,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._round = state["round"]
        self._known = {client: (deficit, at) for client, deficit, at in state["known"]}
        self._sweep_at = state["sweep_at"]
