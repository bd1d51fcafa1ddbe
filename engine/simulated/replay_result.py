"""The result of a replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairserve.engine.simulated.replay_profiles import ProfileChange
from fairserve.scheduling.metrics import CallSample, RunSample


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Samples of a replay, for :func:`fairserve.scheduling.metrics.summarise`."""

    calls: list[CallSample]
    runs: list[RunSample]
    busy_share: float
    """Share of the workers' time with a running pass, from the first arrival to the last end."""
    profiles: list[ProfileChange] = field(default_factory=list)
    """Profiles in force over time, if they are learned."""
