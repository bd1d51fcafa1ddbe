"""A client's deficits at all workers: ``q[i, w]`` of Algorithm 2, for one level of the client's path.

Only workers that the client has used have an entry; all others share one value. The workers in
credit are a bit mask, so that a router checks 256 workers as fast as 8.
"""

from __future__ import annotations

import math
from typing import Any


class Credit:
    """Deficits that start at 0 everywhere. O(1), except refills, which are O(workers used)."""

    __slots__ = ("_at", "_elsewhere", "_known", "_positive", "active", "outstanding")

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        """Deficits by worker number."""
        self._elsewhere = 0.0
        self._known = 0
        """Mask of the workers with an entry."""
        self._positive = 0
        """Mask of the workers with an entry where the client is in credit."""
        self.outstanding = 0
        """Number of dispatched calls that have not ended."""
        self.active = 0
        """Number of clients at or below this level with such calls."""

    def value(self, slot: int) -> float:
        """Return ``q`` at a worker."""
        return self._at.get(slot, self._elsewhere)

    def within(self, mask: int) -> int:
        """Return the workers of ``mask`` where the client is in credit."""
        if self._elsewhere > 0:
            return mask & (self._positive | ~self._known)
        return mask & self._positive

    def _set(self, slot: int, value: float) -> None:
        bit = 1 << slot
        self._at[slot] = value
        self._known |= bit
        if value > 0:
            self._positive |= bit
        else:
            self._positive &= ~bit

    def charge(self, slot: int, cost: float) -> None:
        """Subtract ``cost`` from the deficit at one worker."""
        self._set(slot, self._at.get(slot, self._elsewhere) - cost)

    def add(self, amount: float) -> None:
        """Add ``amount`` to the deficit at every worker; it may be negative."""
        self._elsewhere += amount
        for slot, q in self._at.items():
            self._set(slot, q + amount)

    def refill(self, quantum: float, mask: int) -> None:
        """Refill by rounds of one quantum until the client is in credit at a worker of ``mask``.

        A round refills every worker at or below zero, so no deficit exceeds one quantum.
        """
        best = max(
            (q for slot, q in self._at.items() if mask >> slot & 1),
            default=self._elsewhere,
        )
        if mask & ~self._known:
            best = max(best, self._elsewhere)
        self._refill(quantum, _rounds_to_credit(best, quantum))

    def limit_debt(self, most: float, mask: int) -> None:
        """Reduce the debt at each worker of ``mask`` to at most this much."""
        for slot, q in self._at.items():
            if q < -most and mask >> slot & 1:
                self._set(slot, -most)

    def forgive(self, quantum: float) -> None:
        """Refill every worker at or below zero by rounds of one quantum until it is in credit."""
        self._refill(quantum, None)

    def _refill(self, quantum: float, rounds: int | None) -> None:
        """Refill workers at or below zero by at most this many rounds; None: as many as needed."""
        for slot, q in self._at.items():
            if q <= 0:
                self._set(slot, _refilled(q, quantum, rounds))
        if self._elsewhere <= 0:
            self._elsewhere = _refilled(self._elsewhere, quantum, rounds)

    def join(self, slot: int, others: int) -> None:
        """Add a worker; the client starts there with its best deficit at the others."""
        values = list(self._at.values())
        if others & ~self._known or not values:
            values.append(self._elsewhere)
        self._set(slot, max(values))

    def leave(self, slot: int) -> None:
        """Remove a worker and its deficit."""
        if self._at.pop(slot, None) is not None:
            self._known &= ~(1 << slot)
            self._positive &= self._known

    @property
    def harmless(self) -> bool:
        """Return whether a restart at 0 is no gain: nothing outstanding, in credit everywhere."""
        return not self.outstanding and self._elsewhere > 0 and self._positive == self._known

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "at": [[slot, q] for slot, q in self._at.items()],
            "elsewhere": self._elsewhere,
            "outstanding": self.outstanding,
            "active": self.active,
        }

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Credit:
        """Return the credit restored from a snapshot."""
        credit = cls()
        credit._elsewhere = state["elsewhere"]
        credit.outstanding, credit.active = state["outstanding"], state["active"]
        for slot, q in state["at"]:
            credit._set(slot, q)
        return credit


def _rounds_to_credit(q: float, quantum: float) -> int:
    return math.floor(-q / quantum) + 1


def _refilled(q: float, quantum: float, rounds: int | None) -> float:
    if math.isinf(quantum):
        return quantum
    needed = _rounds_to_credit(q, quantum)
    return q + quantum * (needed if rounds is None else min(rounds, needed))
