"""Claims about systems that were simulated on the same traces, compared seed by seed.

A claim holds if it holds under every seed; the shown values are medians. A figure that a system
lacks (the precision of a throttle that rejected nobody) is NaN, and no claim about it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from fairserve.benchmarks.reproduce.fairserve.workload import Simulated, Summary
from fairserve.benchmarks.reproduce.report import Check, spread

Figure = Callable[[Summary], float]


def less(
    claim: str,
    simulated: Simulated,
    low: str,
    high: str,
    of: Figure,
    *,
    times: float = 1.0,
    digits: int = 0,
    contradicted_by: str = "",
) -> Check:
    """Check that ``times`` the figure of one system is less than that of the other."""
    pairs = [(of(a), of(b)) for a, b in zip(simulated[low], simulated[high], strict=True)]
    held = sum(times * a < b for a, b in pairs)
    least, most = (median(values) for values in zip(*pairs, strict=True))
    ratio = "" if least <= 0 else f", {most / least:,.2f} times as much"
    seen = f"{low} {least:,.{digits}f}, {high} {most:,.{digits}f}{ratio}{_seeds(held, pairs)}"
    return Check(claim, held == len(pairs), seen, contradicted_by)


def always(
    claim: str, summaries: Sequence[Summary], of: Figure, least: float, most: float
) -> Check:
    """Check that the figure of a system is within bounds."""
    values = [of(summary) for summary in summaries]
    held = sum(least <= value <= most for value in values)
    seen = "none" if any(map(math.isnan, values)) else f"{median(values):,.0f}"
    return Check(claim, held == len(values), f"{seen}{_seeds(held, values)}")


def not_beaten(
    simulated: Simulated, ours: str, others: Sequence[str], unfair: Figure, what: str, rate: Figure
) -> Check:
    """Check that no other system is fairer and faster at once, by more than the spread over seeds."""
    mine, quick = (spread(map(of, simulated[ours])) for of in (unfair, rate))
    better = [
        other
        for other in others
        if spread(map(unfair, simulated[other])).greatest < mine.least
        and spread(map(rate, simulated[other])).least > quick.greatest
    ]
    seen = f"{mine.value:,.3g} at {quick.value:,.0f} tok/s"
    if better:
        seen += f"; beaten by {', '.join(better)}"
    return Check(f"no baseline beats {ours} on {what} and throughput at once", not better, seen)


def _seeds(held: int, seeds: Sequence[object]) -> str:
    return "" if held in (0, len(seeds)) else f" (in {held} of {len(seeds)} seeds)"
