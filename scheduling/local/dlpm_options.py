"""Options of DLPM (:mod:`fairserve.scheduling.local.dlpm`), and the bound with ``refill_when_stuck``.

The paper is not work conserving: clients in credit whose calls do not fit block the refill of the
others. With ``refill_when_stuck`` a client out of credit is then admitted in advance of its refills
while its deficit is above ``-D`` at every level of its path, ``D = stuck_advance``. No refill
happens: the client owes the advance, and later refills repay it. The following then holds among the
siblings of each level, with outputs reserved and ``U = we * Linput + wq * M``:

1. ``q <= Q^u``: only a refill raises a deficit, and only one that is at most 0.
2. ``q >= -(U + D)``: at the last admission of the client the deficit was above ``-D``. Since then it
   was charged for one prompt, and for outputs that were reserved together in the memory M.
3. While f waits, each refill gives it ``Q^u``, since none happens while a waiting client has credit.
   So in an interval with k refills ``W_f = k Q^u - (change of q_f)``, and
   ``W_g <= k Q^u - (change of q_g)`` for any g, with equality while g waits, too. No deficit changes
   by more than ``U + Q^u + D``.
4. So ``W_f >= W_g - 2 (U + Q^u + D)`` while f is backlogged, and in both directions while both are:
   Theorems 4.1 and 4.2 with ``Q^u + D`` in place of ``Q^u``. D = 0 is the paper's rule and bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairserve.scheduling.fairness.cost import check_cached_weight


@dataclass(frozen=True, slots=True)
class DlpmOptions:
    """Options: ``quantum`` is Q^u in units of the extend cost, ``we`` and ``wq`` are its weights."""

    quantum: float = 5000.0
    we: float = 1.0
    wq: float = 2.0
    cached_weight: float = 0.0
    """Cost of a cached prompt token relative to an uncached one; 0 is the paper's."""
    refill_when_stuck: bool = True
    """Admit a client out of credit in advance of its refills if no call of a client in credit fits;
    false is the paper's."""
    stuck_advance: float = 5000.0
    """Maximum debt for such an admission, in units of the extend cost; it widens the bounds like a
    quantum."""
    max_bypass: int = 64
    """Maximum number of calls that overtake one that does not fit; 0 (the paper) means no limit."""

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
