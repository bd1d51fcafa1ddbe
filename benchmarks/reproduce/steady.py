"""Figures of the time in which requests arrive, when all clients request more than their share.

If programs depend on their own answers, a client whose last programs drain cannot use its share,
and Jain's index over the whole run drops under any policy. Within the arrivals it does not. The
entitlement of a client that requests less than an equal share cannot be seen in a run
(:mod:`fairserve.benchmarks.reproduce.entitlement`).
"""

from __future__ import annotations

from typing import Any

from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.fairness.cost import Cost, Extend, Linear
from fairserve.scheduling.metrics import CallSample, Service, jain_index


def steady(trace: Trace, result: ReplayResult, *, begin_s: float, end_s: float) -> dict[str, Any]:
    """Return ``steady``: tokens per second, and Jain's index by both costs, between two times."""
    by_client: dict[str, list[CallSample]] = {}
    for call in result.calls:
        by_client.setdefault(call.client, []).append(call)

    def rates(cost: Cost) -> list[float]:
        return [
            Service(calls, cost).between(begin_s, end_s) / (end_s - begin_s)
            for calls in by_client.values()
        ]

    figures = {
        "tokens_per_s": sum(rates(Linear(1.0, 1.0))),
        "jain_index": jain_index(rates(Linear())),
        "jain_index_extend": jain_index(rates(Extend())),
    }
    return {"steady": figures}
