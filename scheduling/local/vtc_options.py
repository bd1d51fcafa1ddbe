"""Options of VTC (:mod:`fairserve.scheduling.local.vtc`), and its named cost functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fairserve.scheduling.fairness.cost import Cost, Extend, Profiled
from fairserve.scheduling.local.length_prediction import Prediction, make_predictor

CostName = Literal["linear", "extend", "profiled"]


@dataclass(frozen=True, slots=True)
class VtcOptions:
    """Options: ``wp`` and ``wq`` weigh prompt and output tokens (``profiled`` has fixed constants)."""

    wp: float = 1.0
    wq: float = 2.0
    cost: CostName = "linear"
    """``extend`` charges only uncached prompt tokens; ``profiled`` is the cost of B.2."""
    lift_when_idle: bool = True
    """Lift a client that arrives at an empty queue to the counter of the client that left it last
    (Algorithm 2). False keeps its counter, as in the paper's code and tables."""
    predict: Prediction | None = None

    def __post_init__(self) -> None:
        check_token_weights(self.wp, self.wq)
        make_cost(self)
        make_predictor(self.predict)


def check_token_weights(wp: float, wq: float) -> None:
    """Raise ValueError unless both are finite and not negative, and one is positive."""
    if not (0 <= wp < math.inf and 0 <= wq < math.inf and wp + wq > 0):
        raise ValueError(f"wp is {wp}, wq is {wq}; allowed: finite, not negative, not both 0")


def make_cost(options: VtcOptions) -> Cost | None:
    """Return the named cost function; None for the linear one, which needs no object."""
    if options.cost == "linear":
        return None
    if options.cost == "extend":
        return Extend(options.wp, options.wq)
    if options.cost == "profiled":
        return Profiled()
    raise ValueError(f"cost is {options.cost!r}; allowed: 'linear', 'extend', 'profiled'")
