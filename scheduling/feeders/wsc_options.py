"""The options of WSC (:mod:`fairserve.scheduling.feeders.wsc`), and the values that papers have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fairserve.scheduling.fairness.cost import SliceWeights, check_cached_weight


@dataclass(frozen=True, slots=True)
class WscOptions:
    """Slacks are in typical calls."""

    charge: Literal["expected", "finish"] = "expected"
    currency: Literal["slices", "tokens"] = "slices"
    """Unit of the counters: ``slices`` of the calls that are typical of their apps, or weighted
    ``tokens``, the same for all apps. Tokens ignore profiles: no output is expected, and slacks
    count calls of ``DEFAULT_PROFILE``."""
    interaction_priority: bool = True
    in_progress: Literal["run", "batch"] = "run"
    """Interactions in progress, which go first: ``run`` counts one from its first dispatched call to its
    end, ``batch`` (the paper, Algorithm 1 line 31) while a call of it is dispatched."""
    interaction_slack: float = 1.0
    locality_slack: float = 8.0
    locality_gain: bool = True
    """The slack is for a call whose prompt is all cached while nothing is of the oldest call's of the
    least served client; else it shrinks with the difference of the two shares. Without: the same for
    every match."""
    max_bypass: int = 16
    cached_weight: float = 1.0
    """Cost of a cached prompt token, as a share of an uncached one; in the charge and in the weight."""
    charge_cached: bool | None = None
    """Alias, replaces ``cached_weight`` where it is given: by 1 if true, by 0 if false."""
    normalise: Literal["call", "interaction"] = "call"
    weight_cap: float = math.inf
    """An app's weight counts at most so many times the median of its tenant's other apps in use
    (:mod:`fairserve.scheduling.fairness.weight_cap`); infinite (the paper) is no cap."""
    run_priority: Literal["progress", "arrival"] = "arrival"
    """Choice among the active runs within the slack: that of the least served client, or the one that is
    expected to need the fewest calls until its end. In a mix of long and short runs ``progress`` takes
    0.91 to 0.99 of the mean time of a run, and up to 1.8 times the p99 wait for a first token."""
    run_order: Literal["critical_path", "arrival"] = "critical_path"
    """Among the queued calls of one run: the one with the longest way to its end first, or the
    oldest. It does not choose the run; where programs declare nothing, both are the same. In virtual
    time (``benchmarks/scripts/run_order.py``, ten rounds) programs of a chain beside many short
    calls took 0.953 of the time (0.939 to 0.968) with two users, 0.885 (0.862 to 0.907) with eight;
    chains side by side 0.99; random and recorded graphs 1.00; four random ones of a user at once
    1.026 (1.010 to 1.045)."""
    alpha: float = 1.0
    beta: float = 2.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.charge not in ("expected", "finish"):
            raise ValueError(f"charge is {self.charge!r}; allowed: expected, finish")
        if self.currency not in ("slices", "tokens"):
            raise ValueError(f"currency is {self.currency!r}; allowed: slices, tokens")
        if self.in_progress not in ("run", "batch"):
            raise ValueError(f"in_progress is {self.in_progress!r}; allowed: run, batch")
        if self.normalise not in ("call", "interaction"):
            raise ValueError(f"normalise is {self.normalise!r}; allowed: call, interaction")
        if self.run_order not in ("critical_path", "arrival"):
            raise ValueError(f"run_order is {self.run_order!r}; allowed: critical_path, arrival")
        if self.run_priority not in ("progress", "arrival"):
            raise ValueError(f"run_priority is {self.run_priority!r}; allowed: progress, arrival")
        if not self.weight_cap > 0:
            raise ValueError(f"weight_cap is {self.weight_cap}; allowed: over 0, or inf")
        for name in ("interaction_slack", "locality_slack", "max_bypass"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"{name} is {value}; allowed: 0 or more")
        SliceWeights(self.alpha, self.beta, self.gamma)
        weight = check_cached_weight(self.cached_weight, self.charge_cached)
        object.__setattr__(self, "cached_weight", weight)


PAPER = WscOptions(
    charge="finish",
    in_progress="batch",
    interaction_slack=math.inf,
    locality_slack=0.0,
    max_bypass=0,
    run_order="arrival",
)
"""WSC as FairServe describes it."""

VTC = WscOptions(
    currency="tokens",
    interaction_priority=False,
    locality_slack=0.0,
    max_bypass=0,
    run_order="arrival",
    beta=1.0,
    gamma=2.0,
)
"""VTC (Algorithms 2 and 4 of its paper) as a feeder: tokens by client, ``wp=1`` and ``wq=2``. The prompt
is charged at selection, the output as it is decoded."""
