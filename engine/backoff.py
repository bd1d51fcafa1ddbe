"""Pauses between attempts that fail: each twice as long as the one before, up to a bound."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

JITTER = 0.1
"""Share by which a pause is shortened at most where a generator is given."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling pauses. Keeps no state: the caller counts its failures in a row, and waits."""

    first_s: float
    last_s: float

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.last_s < math.inf:
            raise ValueError(
                f"first_s is {self.first_s}, last_s is {self.last_s};"
                " allowed: over 0, the first not over the last"
            )

    def pause_s(self, failures: int, rng: random.Random | None = None) -> float:
        """Return the pause after so many failures in a row, in seconds; 0 after none.

        With ``rng`` each pause is shortened at random, so that what failed together is not tried again
        together.
        """
        if failures < 1:
            return 0.0
        pause_s = min(self.first_s * 2.0 ** min(failures - 1, 1000), self.last_s)
        return pause_s if rng is None else pause_s * (1.0 - JITTER * rng.random())
