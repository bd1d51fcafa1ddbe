"""Exponential backoff: each pause between failed attempts is twice the last one, up to a maximum."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

JITTER = 0.1
"""Maximum share by which a pause is shortened at random."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling pauses. It is stateless: the caller counts consecutive failures, and waits."""

    first_s: float
    last_s: float

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.last_s < math.inf:
            raise ValueError(
                f"first_s is {self.first_s}, last_s is {self.last_s};"
                " allowed: over 0, the first not over the last"
            )

    def pause_s(self, failures: int, rng: random.Random | None = None) -> float:
        """Return the pause in seconds after this many consecutive failures; 0 after none.

        With ``rng`` each pause is shortened at random, so that clients that failed together do not
        retry together.
        """
        if failures < 1:
            return 0.0
        pause_s = min(self.first_s * 2.0 ** min(failures - 1, 1000), self.last_s)
        return pause_s if rng is None else pause_s * (1.0 - JITTER * rng.random())
