"""Amounts of the last minute, in buckets of a second: bounded memory, and corrections later.

An amount counts from its second's beginning until that second is a whole window old, which is at least
a window and at most a second more: the limit holds in *any* window. Worked timeline, window 60 s: 3
added at 0.9 and 2 at 10.5 count 5 until 60.0..., when second 0 leaves at 61, and 2 until 71.
"""

from __future__ import annotations

from typing import Any


class RateWindow:
    """Amounts of one holder. Times are monotonic seconds and must not decrease. O(1) amortised."""

    __slots__ = ("_buckets", "_window_s", "total")

    def __init__(self, window_s: float = 60) -> None:
        self._window_s = window_s
        self._buckets: dict[int, int] = {}
        """Amounts by second, in order."""
        self.total = 0

    def drop_old(self, now_s: float) -> None:
        """Forget the seconds that have left the window."""
        horizon = int(now_s) - self._window_s
        buckets = self._buckets
        while buckets:
            second = next(iter(buckets))
            if second >= horizon:
                return
            self.total -= buckets.pop(second)

    def add(self, amount: int, now_s: float) -> None:
        """Add an amount now."""
        second = int(now_s)
        self._buckets[second] = self._buckets.get(second, 0) + amount
        self.total += amount

    def correct(self, change: int, then_s: float) -> None:
        """Correct an amount that was added at ``then_s``; ignored if it is forgotten."""
        second = int(then_s)
        if second in self._buckets:
            self._buckets[second] += change
            self.total += change

    def free_after_s(self, room: int, now_s: float) -> float:
        """Return the seconds until the total is at most ``room`` (not negative); 0 if it is now."""
        left = self.total
        if left <= room:
            return 0.0
        for second, amount in self._buckets.items():
            left -= amount
            if left <= room:
                return second + self._window_s + 1 - now_s
        raise AssertionError("an empty window is at most any room")

    def snapshot(self, now_s: float) -> list[list[float]]:
        """Return the ages of the seconds' beginnings, and amounts."""
        return [[now_s - second, amount] for second, amount in self._buckets.items()]

    def restore(self, state: list[Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot. A second may be taken for the one before."""
        self._buckets = {}
        for age_s, amount in state:
            second = round(now_s - age_s)
            self._buckets[second] = self._buckets.get(second, 0) + int(amount)
        self.total = sum(self._buckets.values())
