"""The metrics of ALGORITHMS section 8, defined once for reports, demo, benchmarks and tests.

The input is :class:`CallSample` and :class:`RunSample` values in seconds of one clock;
:func:`summarise` returns the keys that ``simulate`` and ``demo`` write. Sources: service difference VTC
5.1 (in the form of its tables), Jain's index as the DLPM paper uses it, throttling and delay figures
FairServe section 5. The service of a call is spread evenly from its first token to its end; demand
counts at arrival. Cost: O(calls * windows) for the service difference, O(calls log calls) otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.events import CallOutcome
from fairserve.scheduling.fairness.cost import Cost, Extend, Linear

WASTE_CAUSES = ("throttled", "cancelled", "failed", "expired")
ABUSIVE = "abusive"
"""Group of clients that a throttle should detect."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CallSample:
    """Times and tokens of one call. Times that were not reached or observed are None."""

    client: str
    interaction_id: str
    arrival_s: float
    end_s: float
    outcome: CallOutcome
    usage: TokenUsage
    queue_delay_s: float | None = None
    first_token_s: float | None = None
    mid_run: bool = False
    """True if the call was rejected although its interaction was active."""
    group: str = ""


@dataclass(frozen=True, slots=True)
class RunSample:
    """Outcome of one interaction."""

    client: str
    interaction_id: str
    start_s: float
    end_s: float
    complete: bool
    wasted_tokens: int = 0
    cause: str = ""
    """One of :data:`WASTE_CAUSES`; empty for a complete run."""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows in which service is compared: ``+-half_s`` around centres ``step_s`` apart."""

    half_s: float = 30.0
    step_s: float = 28.5
    first_s: float | None = None
    """First centre; None: the earliest whose window begins with the first arrival."""
    last_s: float | None = None
    """Last centre; None: the latest whose window ends with the last end."""


VTC_TABLES = Windows(first_s=58.5, last_s=571.5)
"""Centres of the VTC paper's tables (ALGORITHMS section 9); arrivals begin at 0."""


def jain_index(values: Iterable[float]) -> float:
    """Return ``(sum x)^2 / (n * sum x^2)``: 1 if all are equal, 1/n if one has everything."""
    x = np.asarray(list(values), dtype=np.float64)
    square = float((x * x).sum())
    return 1.0 if len(x) == 0 or square == 0.0 else float(x.sum()) ** 2 / (len(x) * square)


def water_filling(
    demands: Mapping[str, float], total: float, weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the weighted water-filling division of a total. O(clients log clients).

    No client gets more than its demand; a client whose demand is not met gets as much, divided by
    its weight (default 1), as any other.
    """
    weight = {client: (weights or {}).get(client, 1.0) for client in demands}
    left, shares = sum(weight.values()), {}
    for client in sorted(demands, key=lambda each: demands[each] / weight[each]):
        shares[client] = min(demands[client], total * weight[client] / left)
        total -= shares[client]
        left -= weight[client]
    return shares


def satisfied(served: Mapping[str, float], entitled: Mapping[str, float]) -> dict[str, float]:
    """Return each client's service over its entitlement, 0 to 1; 1 for no entitlement."""
    return {
        client: min(1.0, served.get(client, 0.0) / share) if share > 0 else 1.0
        for client, share in entitled.items()
    }


def distribution(values: Iterable[float]) -> dict[str, float | None]:
    """Return mean, median and 99th percentile (linear interpolation); None without values."""
    x = np.asarray(list(values), dtype=np.float64)
    if len(x) == 0:
        return {"mean": None, "p50": None, "p99": None}
    p50, p99 = np.quantile(x, [0.5, 0.99])
    return {"mean": float(x.mean()), "p50": float(p50), "p99": float(p99)}


class Service:
    """Processed work of some calls under a cost function, as arrays of shape (calls,).

    A call's service is spread evenly from its first token to its end.
    """

    def __init__(self, calls: Iterable[CallSample], cost: Cost) -> None:
        spans = []
        for call in calls:
            from_s = call.first_token_s
            # No first token was observed: the call was not streamed.
            if from_s is None and call.outcome == "completed":
                from_s = call.arrival_s + (call.queue_delay_s or 0.0)
            if from_s is not None:
                spans.append((from_s, call.end_s, cost(call.usage)))
        table = np.asarray(spans, dtype=np.float64).reshape(-1, 3)
        self._from_s, self._end_s, self._service = table[:, 0], table[:, 1], table[:, 2]
        self._length_s = self._end_s - self._from_s

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the service processed between two times. O(calls)."""
        overlap = np.minimum(self._end_s, end_s) - np.maximum(self._from_s, begin_s)
        at_once = self._length_s <= 0
        length = np.where(at_once, 1.0, self._length_s)
        ended_here = (begin_s <= self._end_s) & (self._end_s < end_s)
        share = np.where(at_once, ended_here, np.maximum(0.0, overlap) / length)
        return float((share * self._service).sum())


class Demand:
    """Requested work of calls under a cost function, at arrival; rejected calls do not count."""

    def __init__(self, calls: Iterable[CallSample], cost: Cost) -> None:
        asked = [(c.arrival_s, cost(c.usage)) for c in calls if c.outcome != "refused"]
        table = np.asarray(asked, dtype=np.float64).reshape(-1, 2)
        self._arrival_s, self._cost = table[:, 0], table[:, 1]

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the demand that arrived between two times. O(calls)."""
        return float(self._cost[(begin_s <= self._arrival_s) & (self._arrival_s < end_s)].sum())


def service_difference(
    by_client: dict[str, list[CallSample]],
    cost: Cost,
    windows: Windows,
    demand_cost: Cost | None = None,
) -> dict[str, float]:
    """Return VTC Table 2: per centre the sum over clients of ``min(max - s, |demand - s|)`` per second.

    ``max`` is the largest service of a client in the window. Rejected calls are not demand. Demand
    is measured by the cost of service, or by ``demand_cost``.
    """
    ends = [call.end_s for calls in by_client.values() for call in calls]
    starts = [call.arrival_s for calls in by_client.values() for call in calls]
    if not ends:
        return {"max": 0.0, "avg": 0.0, "var": 0.0}
    begin_s, end_s = min(starts), max(ends)
    half_s = min(windows.half_s, (end_s - begin_s) / 2) or 1.0
    first_s = begin_s + half_s if windows.first_s is None else windows.first_s
    last_s = end_s - half_s if windows.last_s is None else windows.last_s
    centres = np.arange(first_s, last_s + 1e-6, windows.step_s)
    if not len(centres):
        centres = np.asarray([(begin_s + end_s) / 2])
    service = {client: Service(calls, cost) for client, calls in by_client.items()}
    demand = {client: Demand(calls, demand_cost or cost) for client, calls in by_client.items()}
    figures = []
    for centre_s in centres:
        window = float(centre_s) - half_s, float(centre_s) + half_s
        served = {client: each.between(*window) for client, each in service.items()}
        most = max(served.values())
        total = sum(min(most - s, abs(demand[c].between(*window) - s)) for c, s in served.items())
        figures.append(total / (2 * half_s))
    x = np.asarray(figures)
    return {"max": float(x.max()), "avg": float(x.mean()), "var": float(x.var())}


def service_rates(by_client: dict[str, list[CallSample]], cost: Cost) -> dict[str, float]:
    """Return each client's service per second on the interval in which all are active.

    A client is active from its first arrival to its last end. If the clients were never active
    together, the whole run counts.
    """
    if not by_client:
        return {}
    begin_s = max(min(c.arrival_s for c in calls) for calls in by_client.values())
    end_s = min(max(c.end_s for c in calls) for calls in by_client.values())
    if end_s <= begin_s:
        begin_s = min(c.arrival_s for calls in by_client.values() for c in calls)
        end_s = max(c.end_s for calls in by_client.values() for c in calls)
    length_s = max(end_s - begin_s, 1e-9)
    return {
        client: Service(calls, cost).between(begin_s, end_s) / length_s
        for client, calls in by_client.items()
    }


def throttling_quality(
    calls: Iterable[CallSample], abusers: Collection[str]
) -> dict[str, float | None]:
    """Return how well throttling finds the abusers (FairServe Figure 8c); throttled: rejected once.

    ``precision`` is the share of the throttled clients that are ``abusers``, None if no client was
    throttled; ``recall`` the share of the abusers with calls that were throttled, None if none had
    calls. ``abusive_tokens`` is the share of all processed tokens that were processed for abusers.
    """
    seen, throttled = set(), set()
    tokens = abusive_tokens = 0
    for call in calls:
        spent = call.usage.prompt_tokens + call.usage.output_tokens
        tokens += spent
        if call.outcome == "refused":
            throttled.add(call.client)
        if call.client in abusers:
            seen.add(call.client)
            abusive_tokens += spent
    found = len(throttled & seen)
    return {
        "throttled_users": len(throttled),
        "precision": found / len(throttled) if throttled else None,
        "recall": found / len(seen) if seen else None,
        "abusive_tokens": abusive_tokens,
        "abusive_tokens_share": abusive_tokens / tokens if tokens else 0.0,
    }


def waited_s(call: CallSample) -> float:
    """Return the time from arrival to start, or to the end of a call cancelled before its start."""
    if call.queue_delay_s is not None:
        return call.queue_delay_s
    return call.end_s - call.arrival_s if call.outcome == "cancelled" else 0.0


def summarise(
    calls: Sequence[CallSample],
    runs: Sequence[RunSample],
    *,
    cost: Cost = Linear(),
    demand_cost: Cost | None = None,
    windows: Windows = Windows(),
    delayed_after_s: float = 1.0,
    groups: bool = True,
) -> dict[str, Any]:
    """Return all reported figures of one system.

    A user is delayed if a call waited longer than ``delayed_after_s``; a user or interaction is
    served if it completed at least once. If a group is named :data:`ABUSIVE`, ``throttling`` is the
    :func:`throttling_quality` for its clients.
    """
    by_client: dict[str, list[CallSample]] = {}
    for call in calls:
        by_client.setdefault(call.client, []).append(call)
    begin_s = min((call.arrival_s for call in calls), default=0.0)
    end_s = max((call.end_s for call in calls), default=0.0)
    makespan_s = end_s - begin_s
    per_s = 1.0 / makespan_s if makespan_s > 0 else 0.0
    prompt = sum(call.usage.prompt_tokens for call in calls)
    output = sum(call.usage.output_tokens for call in calls)
    cached = sum(call.usage.cached_tokens for call in calls)
    delayed = {call.client for call in calls if waited_s(call) > delayed_after_s}
    served_users = {run.client for run in runs if run.complete}
    users = len(by_client) or 1
    summary: dict[str, Any] = {
        "service_difference": service_difference(by_client, cost, windows, demand_cost),
        "jain_index": jain_index(service_rates(by_client, cost).values()),
        "jain_index_extend": jain_index(service_rates(by_client, Extend()).values()),
        "throughput_tokens_per_s": {
            "total": (prompt + output) * per_s,
            "prompt": prompt * per_s,
            "decode": output * per_s,
        },
        "ttft_s": distribution(
            c.first_token_s - c.arrival_s for c in calls if c.first_token_s is not None
        ),
        "interaction_latency_s": distribution(r.end_s - r.start_s for r in runs if r.complete),
        "queue_delay_s": distribution(
            c.queue_delay_s for c in calls if c.queue_delay_s is not None
        ),
        "delayed_users_share": len(delayed) / users,
        "refused_calls": sum(call.outcome == "refused" for call in calls),
        "refused_mid_run": sum(call.mid_run for call in calls),
        "completed_interactions": sum(run.complete for run in runs),
        "aborted_interactions": sum(not run.complete for run in runs),
        "wasted_tokens": {
            cause: sum(run.wasted_tokens for run in runs if run.cause == cause)
            for cause in WASTE_CAUSES
        },
        "served_users_share": len(served_users & set(by_client)) / users,
        "served_interactions_share": sum(r.complete for r in runs) / len(runs) if runs else 1.0,
        "prefix_hit_rate": cached / prompt if prompt else 0.0,
        "makespan_s": makespan_s,
        "per_client": {
            client: {
                "calls": len(own),
                "refused_calls": sum(call.outcome == "refused" for call in own),
                "service": math.fsum(cost(call.usage) for call in own),
                "ttft_s": distribution(
                    c.first_token_s - c.arrival_s for c in own if c.first_token_s is not None
                ),
            }
            for client, own in sorted(by_client.items())
        },
    }
    if groups:
        abusers = {call.client for call in calls if call.group == ABUSIVE}
        if abusers:
            summary["throttling"] = throttling_quality(calls, abusers)
        summary["groups"] = {
            name: summarise(
                [call for call in calls if call.group == name],
                [run for run in runs if run.group == name],
                cost=cost,
                demand_cost=demand_cost,
                windows=windows,
                delayed_after_s=delayed_after_s,
                groups=False,
            )
            for name in sorted({call.group for call in calls if call.group})
        }
    return summary
