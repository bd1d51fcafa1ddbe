"""Service that both studies of profiles measure: in typical calls, and by window of time."""

from __future__ import annotations

from collections.abc import Iterable

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.scheduling.fairness.cost import SliceWeights

LEARNING_INTERVAL_S = 30.0
"""Seconds between two updates of learned profiles, as in the server."""
WEIGHTS = SliceWeights()


def typical_calls(usage: TokenUsage, true: AppProfile, stage: int) -> float:
    """Return the service of a call, in calls of the typical size by the app's true profile."""
    return WEIGHTS.slice(usage) / WEIGHTS.typical_call(true, stage)


class ServiceWindows:
    """Totals of each party in equal windows of time."""

    def __init__(self, parties: Iterable[str], duration_s: float, width_s: float) -> None:
        """Divide the duration into windows of about this width, at least two."""
        self._number = max(2, round(duration_s / width_s))
        self._width_s = duration_s / self._number
        self._totals = {party: [0.0] * self._number for party in parties}

    def add(self, party: str, at_s: float, amount: float) -> None:
        """Add an amount; one after the end is in the last window."""
        self._totals[party][min(int(at_s / self._width_s), self._number - 1)] += amount

    def totals(self, party: str) -> list[float]:
        """Return the total of each window."""
        return self._totals[party]

    def per_s(self) -> dict[str, list[float]]:
        """Return the totals per second of each party by window."""
        return {
            party: [total / self._width_s for total in totals]
            for party, totals in self._totals.items()
        }
