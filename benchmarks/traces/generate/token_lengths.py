"""Token lengths that vary around a published mean.

The papers give averages only. Lengths are drawn from a log-normal distribution with that mean and a
chosen coefficient of variation (cv), which is positive and right-skewed like measured lengths.

Weakness: real lengths have several modes and are correlated; these are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Distribution of lengths: ``mean`` in tokens, at least 1, and ``cv`` (0: always the mean)."""

    mean: float
    cv: float = 0.0

    def draw(self, rng: np.random.Generator) -> int:
        """Return one length in tokens, rounded, at least 1. Advances ``rng`` unless cv is 0."""
        if self.cv == 0:
            return round(self.mean)
        variance = math.log1p(self.cv**2)
        return max(1, round(rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance))))
