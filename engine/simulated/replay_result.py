"""What came of a replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairserve.engine.simulated.replay_profiles import ProfileChange
from fairserve.scheduling.metrics import CallSample, RunSample


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What happened, for :func:`fairserve.scheduling.metrics.summarise`."""

    calls: list[CallSample]
    runs: list[RunSample]
    busy_share: float
    """Of the workers' time from the first arrival to the last end, the part with a pass under way."""
    profiles: list[ProfileChange] = field(default_factory=list)
    """Where they are learned: those that held, in the order of time."""
