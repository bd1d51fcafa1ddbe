"""Amounts of a window in buckets of one second: bounded memory, correctable later.

An amount counts from the start of its second until that second is a whole window old, that is for
one window up to one second more, so the limit holds in *any* window. Worked timeline, window 60 s:
3 added at 0.9 and 2 at 10.5 count 5 until 60.0..., when second 0 leaves at 61, and 2 until 71.
"""

from __future__ import annotations

from typing import Any

from fairserve.interactions.ages import age_of, time_of


class RateWindow:
    """Amounts of one holder. Times are monotonic seconds and must not decrease. O(1) amortised."""

    __slots__ = ("_buckets", "_window_s", "total")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._buckets: dict[int, int] = {}
        """Amounts by second, ascending."""
        self.total = 0

    def drop_old(self, now_s: float) -> None:
        """Drop the seconds that have left the window."""
        horizon = int(now_s) - self._window_s
        buckets = self._buckets
        while buckets:
            second = next(iter(buckets))
            if second >= horizon:
                return
            self.total -= buckets.pop(second)

    def total_at(self, now_s: float) -> int:
        """Return the total without the seconds that have left the window, which stay here.

        For readers, whose clock may be ahead of that of the events.
        """
        horizon, total = int(now_s) - self._window_s, self.total
        for second, amount in self._buckets.items():
            if second >= horizon:
                break
            total -= amount
        return total

    def add(self, amount: int, now_s: float) -> None:
        """Add an amount at ``now_s``."""
        second = int(now_s)
        self._buckets[second] = self._buckets.get(second, 0) + amount
        self.total += amount

    def correct(self, change: int, then_s: float) -> None:
        """Correct an amount that was added at ``then_s``; ignored if its second was dropped."""
        second = int(then_s)
        if second in self._buckets:
            self._buckets[second] += change
            self.total += change

    def free_after_s(self, room: int, now_s: float) -> float:
        """Return the seconds until the total is at most ``room`` (not negative); 0 if it already is."""
        left = self.total
        if left <= room:
            return 0.0
        for second, amount in self._buckets.items():
            left -= amount
            if left <= room:
                return second + self._window_s + 1 - now_s
        raise AssertionError("an empty window is at most any room")

    def snapshot(self, now_s: float) -> list[list[Any]]:
        """Return the age of each second's start, and its amount."""
        return [[age_of(second, now_s), amount] for second, amount in self._buckets.items()]

    def restore(self, state: list[Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot.

        On another clock whose seconds begin at other times, amounts shift by up to half a second.
        """
        self._buckets = {}
        for age, amount in state:
            second = round(time_of(age, now_s))
            self._buckets[second] = self._buckets.get(second, 0) + int(amount)
        self.total = sum(self._buckets.values())
