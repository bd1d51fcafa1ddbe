"""A limit on what all owners use together, with a share for each: nobody fills it, whoever else tries.

An owner may have at most ``share`` of what the others leave. So ``n`` owners that want everything get
``share / (1 + share * (n - 1))`` each, and a part stays free for one that comes later: with a share of a
quarter, four of them get a seventh each, and three sevenths are left.

Paper: A. K. Choudhury and E. L. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
Switches", 1998 (``share = alpha / (1 + alpha)``).
Weakness: what is in use is not taken away, so that a limit fills if nearly as many owners as it has
places use it.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

Full = Literal["owner", "all"]
"""The part that has no room: the owner's share, or everything."""


def share_of(limit: int, share: float, others: int, least: int = 1) -> int:
    """Return what an owner may use of a limit of which the others use this much."""
    return max(least, int(share * (limit - others)))


def allowed_of(limit: int, owner_limit: int, others: int) -> int:
    """Return what an owner may use of a limit, if alone it may use ``owner_limit`` of it.

    For bytes in a database, of which a query knows what is in use.
    """
    return share_of(limit, min(1.0, owner_limit / limit), others, least=0)


class SharedLimit:
    """Amounts in use, in all and by owner (a tenant, or the operators). O(1), from any thread."""

    def __init__(self, limit: int, share: float, least: int = 1) -> None:
        """``least`` is what an owner may have in any case, as long as there is room in all."""
        self.limit, self._share, self._least = limit, share, least
        self.used = 0
        self._of: Counter[str] = Counter()
        self._lock = threading.Lock()

    def of(self, owner: str) -> int:
        """Return what an owner uses."""
        return self._of[owner]

    def share(self, owner: str) -> int:
        """Return what an owner may use at present."""
        return share_of(self.limit, self._share, self.used - self._of[owner], self._least)

    def full(self, owner: str, amount: int = 1) -> Full | None:
        """Return what has no room for this much more of an owner; None if there is room."""
        own = self._of[owner]
        if own + amount > share_of(self.limit, self._share, self.used - own, self._least):
            return "owner"
        return "all" if self.used + amount > self.limit else None

    def take(self, owner: str, amount: int = 1) -> Full | None:
        """Take an amount; return what has no room, and take nothing then."""
        with self._lock:
            full = self.full(owner, amount)
            if full is None:
                self._add(owner, amount)
            return full

    def add(self, owner: str, amount: int = 1) -> None:
        """Take an amount whether or not there is room."""
        with self._lock:
            self._add(owner, amount)

    def release(self, owner: str, amount: int = 1) -> None:
        """Release an amount that was taken."""
        with self._lock:
            self._add(owner, -amount)

    def _add(self, owner: str, amount: int) -> None:
        self.used += amount
        self._of[owner] += amount
        if not self._of[owner]:
            del self._of[owner]
