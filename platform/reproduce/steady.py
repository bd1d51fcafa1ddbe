"""Figures of the time in which requests arrive, when all clients ask for more than their share.

Where programs depend on their own answers, a client whose last programs drain cannot use its share, and
Jain's index over the whole run sinks under any policy. Within the arrivals it does not. A client may
still ask for less than an equal share; so there is an index of what clients got of what they are
*entitled* to: their max-min fair share of all service, which is no more than they asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.cost import Cost, Extend, Linear
from fairserve.scheduling.metrics import CallSample, Service, jain_index


def steady(trace: Trace, result: ReplayResult, *, begin_s: float, end_s: float) -> dict[str, Any]:
    """Under ``steady``: tokens a second, and Jain's index by both costs, between two times.

    ``jain_index_entitled`` is that of service over entitlement, cached tokens not counted.
    """
    by_client: dict[str, list[CallSample]] = {}
    for call in result.calls:
        by_client.setdefault(call.client, []).append(call)

    def rates(cost: Cost) -> dict[str, float]:
        return {
            client: Service(calls, cost).between(begin_s, end_s) / (end_s - begin_s)
            for client, calls in by_client.items()
        }

    extend = rates(Extend())
    asked = {
        client: extend[client] + _waiting(calls, end_s) / (end_s - begin_s)
        for client, calls in by_client.items()
    }
    shares = max_min_shares(asked, sum(extend.values()))
    figures = {
        "tokens_per_s": sum(rates(Linear(1.0, 1.0)).values()),
        "jain_index": jain_index(rates(Linear()).values()),
        "jain_index_extend": jain_index(extend.values()),
        "jain_index_entitled": jain_index(
            extend[client] / share for client, share in shares.items() if share > 0
        ),
    }
    return {"steady": figures}


def _waiting(calls: Iterable[CallSample], at_s: float) -> float:
    """The service that calls which wait for their first token will have."""
    extend = Extend()
    return sum(
        extend(call.usage)
        for call in calls
        if call.arrival_s < at_s and (call.first_token_s is None or call.first_token_s >= at_s)
    )


def max_min_shares(asked: Mapping[str, float], total: float) -> dict[str, float]:
    """How a total is shared out fairly: nobody gets more than they asked for, and who gets less than
    that gets as much as anybody.
    """
    shares: dict[str, float] = {}
    for client in sorted(asked, key=asked.__getitem__):
        shares[client] = min(asked[client], total / (len(asked) - len(shares)))
        total -= shares[client]
    return shares
