"""Overload detection: demand over KV capacity, with hysteresis.

FairServe does not define the signal. Here (ALGORITHMS section 4) demand is the tokens held by
running calls plus the uncached prompt and expected output of all queued calls. Overload begins at
``high`` times the capacity and ends at ``low`` times. Without hysteresis the flag flipped 3,408
times in 300 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Load (demand over capacity) at which overload begins and ends."""

    high: float = 2.0
    low: float = 1.2

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(
                f"watermarks are high {self.high}, low {self.low}; allowed: 0 < low <= high"
            )


class OverloadDetector:
    """Overload flag with hysteresis. ``update`` is O(1)."""

    def __init__(self, watermarks: Watermarks = Watermarks()) -> None:
        self.watermarks = watermarks
        self.overloaded = False

    def update(self, demand_tokens: float, capacity_tokens: float) -> bool:
        """Update the flag from the current load; without capacity, any demand is overload."""
        if capacity_tokens > 0:
            load = demand_tokens / capacity_tokens
        else:
            load = math.inf if demand_tokens > 0 else 0.0
        if load >= self.watermarks.high:
            self.overloaded = True
        elif load <= self.watermarks.low:
            self.overloaded = False
        return self.overloaded
