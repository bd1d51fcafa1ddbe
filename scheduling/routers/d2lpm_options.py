"""Options of D2LPM (:mod:`fairserve.scheduling.routers.d2lpm`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class D2lpmOptions:
    """Options: ``quantum`` is Q^w in tokens times charge factor; None uses ``quantum_prompts``."""

    quantum: float | None = None
    quantum_prompts: float = 20.0
    we: float = 1.0
    wq: float = 2.0
    level_quantum: Literal["clients", "equal"] = "clients"
    """Quantum of an outer level: multiplied by its active clients, or equal at every level."""

    def __post_init__(self) -> None:
        if self.quantum is not None and not self.quantum > 0:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, or null")
        if not 0 < self.quantum_prompts < math.inf:
            raise ValueError(f"quantum_prompts is {self.quantum_prompts}; allowed: over 0, finite")
        if self.we < 0 or self.wq < 0:
            raise ValueError(f"we is {self.we}, wq is {self.wq}; allowed: not negative")
        if self.level_quantum not in ("clients", "equal"):
            raise ValueError(
                f"level_quantum is {self.level_quantum!r}; allowed: 'clients', 'equal'"
            )
