"""Options of WSC (:mod:`fairserve.scheduling.feeders.wsc`), with the papers' values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fairserve.scheduling.fairness.cost import SliceWeights, check_cached_weight


@dataclass(frozen=True, slots=True)
class WscOptions:
    """Options of WSC; slacks are in typical calls."""

    charge: Literal["expected", "finish"] = "expected"
    currency: Literal["slices", "tokens"] = "slices"
    """Unit of the counters: typical calls of each app (``slices``), or weighted ``tokens``, equal
    for all apps. ``tokens`` ignores profiles: no output is expected, and slacks count calls of
    ``DEFAULT_PROFILE``."""
    interaction_priority: bool = True
    in_progress: Literal["run", "batch"] = "run"
    """Rule for interactions in progress, which have priority: ``run`` counts one from its first
    dispatched call to its end, ``batch`` (the paper, Algorithm 1 line 31) while a call is
    dispatched."""
    interaction_slack: float = 0.0
    locality_slack: float = 8.0
    locality_gain: bool = True
    """Scale the slack by the difference of the cached shares of the matched call and of the oldest
    call of the least served client; the full slack applies at a difference of 1. False: always
    full."""
    max_bypass: int = 16
    cached_weight: float = 1.0
    """Cost of a cached prompt token relative to an uncached one, in the charge and in the weight."""
    charge_cached: bool | None = None
    """Alias that replaces ``cached_weight`` if given: 1 for true, 0 for false."""
    normalise: Literal["call", "interaction"] = "call"
    weight_cap: float = math.inf
    """Maximum weight of an app as a multiple of the median of its tenant's other apps in use
    (:mod:`fairserve.scheduling.fairness.weight_cap`); infinite (the paper) means no cap."""
    declared_trust: float = 32.0
    """Maximum typical calls that a tenant may gain by declarations that no calls have confirmed
    (:mod:`fairserve.scheduling.declared_trust`); infinite (the paper) means no bound."""
    run_order: Literal["critical_path", "arrival"] = "critical_path"
    """Choice among the queued calls of one run: the longest path to its end, or the oldest. It does
    not choose the run; for undeclared programs both are the same. In virtual time
    (ten rounds) chain programs beside many short calls took
    0.953 of the time (0.939 to 0.968) with two users and 0.885 (0.862 to 0.907) with eight; chains
    side by side 0.99; random and recorded graphs 1.00; four random graphs of a user at once 1.026
    (1.010 to 1.045)."""
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
        if not self.weight_cap > 0:
            raise ValueError(f"weight_cap is {self.weight_cap}; allowed: over 0, or inf")
        for name in ("interaction_slack", "locality_slack", "max_bypass", "declared_trust"):
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
    declared_trust=math.inf,
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
"""VTC (Algorithms 2 and 4 of its paper) as a feeder: tokens by client, ``wp=1`` and ``wq=2``. The
prompt is charged at selection, the output as it is decoded."""
