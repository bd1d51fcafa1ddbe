"""Median of the last values: O(log n) to find a place, plus a short move to insert."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class RunningMedian:
    """Median of at most ``size`` values, the oldest dropped first."""

    def __init__(self, size: int, values: list[float] | None = None) -> None:
        self._recent: deque[float] = deque(values or (), maxlen=size)
        self._sorted: list[float] = sorted(self._recent)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._recent)

    def add(self, value: float) -> None:
        """Add a value; the oldest is dropped beyond ``size``."""
        if len(self._recent) == self._recent.maxlen:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(value)
        insort(self._sorted, value)

    def value(self) -> float:
        """Return the median; for an even number the mean of the middle two. Must not be empty."""
        middle = len(self._sorted) // 2
        if len(self._sorted) % 2:
            return self._sorted[middle]
        return (self._sorted[middle - 1] + self._sorted[middle]) / 2

    def values(self) -> list[float]:
        """Return the values, oldest first."""
        return list(self._recent)
