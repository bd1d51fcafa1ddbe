"""Delays with which ends of calls reach the server from Envoy, as its Prometheus histogram has them.

Weakness: a histogram knows bounds, no values. A quantile is interpolated within its bucket, as
Prometheus' ``histogram_quantile`` does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

METRIC = "fairserve_envoy_end_delay_seconds"

Buckets = Mapping[float, float]
"""Number of delays up to each upper bound in seconds, ascending; the last bound is infinite."""


def buckets_of(text: str) -> Buckets:
    """Return the buckets of all delays so far in the text of a scrape; none if it has none."""
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{METRIC}_bucket"
    }


def between(before: Buckets, after: Buckets) -> Buckets:
    """Return the buckets of the delays between two scrapes."""
    return {bound: count - before[bound] for bound, count in after.items()}


def together(parts: Sequence[Buckets]) -> Buckets:
    """Return the buckets of the delays of all parts, which have the same bounds."""
    return {bound: sum(part[bound] for part in parts) for bound in parts[0]}


def quantile_s(buckets: Buckets, share: float) -> float:
    """Return a quantile in seconds: the greatest finite bound if it is beyond. Needs a delay."""
    rank, low_s, below = share * buckets[math.inf], 0.0, 0.0
    for bound_s, count in buckets.items():
        if bound_s == math.inf:
            break
        if count >= rank:
            return low_s + (bound_s - low_s) * (rank - below) / (count - below)
        low_s, below = bound_s, count
    return low_s
