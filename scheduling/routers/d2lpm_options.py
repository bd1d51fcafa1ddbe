"""Options of D2LPM (:mod:`fairserve.scheduling.routers.d2lpm`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fairserve.scheduling.fairness.cost import check_cached_weight
from fairserve.scheduling.routers.loads import check_balance


@dataclass(frozen=True, slots=True)
class D2lpmOptions:
    """Options: ``quantum`` is Q^w in tokens times charge factor; None uses ``quantum_prompts``."""

    quantum: float | None = None
    quantum_prompts: float = 20.0
    we: float = 1.0
    wq: float = 2.0
    cached_weight: float = 1.0
    """Cost of a prompt token believed to be cached at the worker, relative to an uncached one; 1 is
    the paper's."""
    charge_cached: bool | None = None
    """Alias that replaces ``cached_weight``: 1 for true, 0 for false."""
    balance_abs: int | None = None
    """Ignore matches while one worker has this many more outstanding calls than another and
    ``balance_rel`` times as many; None (the paper) never does."""
    balance_rel: float = 1.5
    level_quantum: Literal["clients", "equal"] = "clients"
    """Quantum of an outer level: multiplied by its active clients, or equal at every level."""

    def __post_init__(self) -> None:
        if self.quantum is not None and not self.quantum > 0:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, or null")
        if not 0 < self.quantum_prompts < math.inf:
            raise ValueError(f"quantum_prompts is {self.quantum_prompts}; allowed: over 0, finite")
        if self.we < 0 or self.wq < 0:
            raise ValueError(f"we is {self.we}, wq is {self.wq}; allowed: not negative")
        check_balance(self.balance_abs, self.balance_rel)
        weight = check_cached_weight(self.cached_weight, self.charge_cached)
        object.__setattr__(self, "cached_weight", weight)
        if self.level_quantum not in ("clients", "equal"):
            raise ValueError(
                f"level_quantum is {self.level_quantum!r}; allowed: 'clients', 'equal'"
            )
