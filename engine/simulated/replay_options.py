"""How a trace is replayed: on what, with whose limits, weights and profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairserve.engine.simulated.plans import Isolation
from fairserve.interactions.profile import AppProfile
from fairserve.interactions.profile_learning import LearningOptions
from fairserve.scheduling.directory import NO_LIMITS, Setting
from fairserve.throttling.base import Limits


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a trace is replayed. Times are seconds."""

    workers: int = 1
    seed: int = 0
    """Of the dispatcher."""
    dispatch_delay_s: float = 0.0
    """From control's grant to the worker's queue."""
    tick_s: float = 0.25
    """Between two reports of what was decoded."""
    until_s: float = math.inf
    """The replay stops here; calls under way are cancelled, and their runs are not reported."""
    retries: int = 0
    """How often a refused call is tried again after its ``Retry-After``; its run is aborted then."""
    isolation: Isolation = "none"
    """Who shares cached prefixes with whom."""
    limits: Limits = NO_LIMITS
    """Of every app and its users."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By user; others have 1."""
    profiles: Mapping[str, AppProfile] = field(default_factory=dict)
    """By app, as declared; others have the trace's own means."""
    settings: Sequence[Setting] = ()
    """Of apps, tenants, users and contracts, told after all of the above and over it. Budgets do not
    bind: nothing has a price."""
    learning: LearningOptions | None = None
    """Profiles are learned from what the calls use; None: they stay as declared."""
    learning_interval_s: float = 30.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}; allowed: 1 or more")
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}; allowed: 0 or more")
        if not self.learning_interval_s >= 0:
            raise ValueError(
                f"learning_interval_s is {self.learning_interval_s}; allowed: 0 or more"
            )
        if not self.tick_s > 0 or not self.dispatch_delay_s >= 0:
            raise ValueError("tick_s must be over 0, dispatch_delay_s 0 or more")
