"""Options of a replay: workers, limits, weights, profiles and time-outs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fairserve.engine.simulated.plans import Isolation
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.scheduling.directory import NO_LIMITS, Setting
from fairserve.throttling.base import Limits

CallReports = Literal["tokens", "starts", "ends"]
"""Reports of a worker about a running call: its start and its tokens, its start only, or neither."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of a replay. Times are seconds."""

    workers: int = 1
    seed: int = 0
    """Seed of the dispatcher."""
    dispatch_delay_s: float = 0.0
    """Delay in seconds between control's grant and its arrival at the worker's queue."""
    tick_s: float = 0.25
    """Interval in seconds between reports of decoded tokens."""
    call_reports: CallReports = "tokens"
    """Calls that are not streamed report their start only (decision 32)."""
    until_s: float = math.inf
    """End of the replay; running calls are cancelled, and their runs are not reported."""
    retries: int = 0
    """Number of retries of a rejected call after its ``Retry-After``; then its run is aborted."""
    first_token_timeout_s: float = math.inf
    """Time for which a client waits for the first token of a call; then it aborts the run."""
    isolation: Isolation = "none"
    """Scope of shared cached prefixes."""
    limits: Limits = NO_LIMITS
    """Limits of every app and its users."""
    open_runs: int | None = None
    """Number of runs that may be open at once, in order of arrival; None: all."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights by user; the default is 1."""
    profiles: Mapping[str, AppProfile] = field(default_factory=dict)
    """Declared profiles by app; the default is the trace's means."""
    settings: Sequence[Setting] = ()
    """Settings of apps, tenants, users and quotas, applied after all of the above. Budgets have no
    effect, since tokens have no price."""
    learning: LearningOptions | None = None
    """Options of learned profiles; None keeps the declared profiles."""
    learning_interval_s: float = 30.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}; allowed: 1 or more")
        if self.open_runs is not None and self.open_runs < 1:
            raise ValueError(f"open_runs is {self.open_runs}; allowed: 1 or more")
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}; allowed: 0 or more")
        if not self.first_token_timeout_s > 0:
            raise ValueError(
                f"first_token_timeout_s is {self.first_token_timeout_s}; allowed: over 0"
            )
        if not self.learning_interval_s >= 0:
            raise ValueError(
                f"learning_interval_s is {self.learning_interval_s}; allowed: 0 or more"
            )
        if not self.tick_s > 0 or not self.dispatch_delay_s >= 0:
            raise ValueError(
                f"tick_s is {self.tick_s}, dispatch_delay_s is {self.dispatch_delay_s};"
                " allowed: over 0, and 0 or more"
            )
