"""Curves over time for plots: the service of each client and its time to first token.

A point is a window of the width used for the service difference; windows overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairserve.scheduling.fairness.cost import Cost
from fairserve.scheduling.metrics import CallSample, Service, Windows

_STEPS = 4
"""Number of points in half a window."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Values at centres of windows, by client; clients with the most service first."""

    centres_s: tuple[float, ...]
    service_per_s: dict[str, tuple[float, ...]]
    response_s: dict[str, tuple[float | None, ...]]
    """Mean time to first token of the calls that arrived in the window; None without arrivals."""
    accumulated: dict[str, tuple[float, ...]]
    """Service from the start to the centre."""
    backlogged: dict[str, tuple[bool, ...]]
    """True if calls waited all the time since the previous centre (at the first: at that moment)."""


def curves_of(calls: Sequence[CallSample], cost: Cost, windows: Windows) -> Curves:
    """Return the curves of all clients. O(calls * points)."""
    if not calls:
        return Curves((), {}, {}, {}, {})
    begin_s = min(call.arrival_s for call in calls)
    end_s = max(call.end_s for call in calls)
    half_s = min(windows.half_s, (end_s - begin_s) / 2) or 1.0
    centres = np.arange(begin_s + half_s, end_s - half_s + 1e-6, half_s / _STEPS)
    by_client: dict[str, list[CallSample]] = {}
    for call in calls:
        by_client.setdefault(call.client, []).append(call)
    total = {client: sum(cost(call.usage) for call in own) for client, own in by_client.items()}
    service: dict[str, tuple[float, ...]] = {}
    response: dict[str, tuple[float | None, ...]] = {}
    accumulated: dict[str, tuple[float, ...]] = {}
    backlogged: dict[str, tuple[bool, ...]] = {}
    for client in sorted(by_client, key=lambda name: (-total[name], name)):
        own = by_client[client]
        served = Service(own, cost)
        service[client] = tuple(
            served.between(float(centre) - half_s, float(centre) + half_s) / (2 * half_s)
            for centre in centres
        )
        accumulated[client] = tuple(served.between(begin_s, float(centre)) for centre in centres)
        backlogged[client] = _backlogged(own, tuple(map(float, centres)))
        seen = [(c.arrival_s, c.first_token_s) for c in own if c.first_token_s is not None]
        arrival, first = np.asarray(seen, dtype=np.float64).reshape(-1, 2).T
        waited = []
        for centre in centres:
            inside = (centre - half_s <= arrival) & (arrival < centre + half_s)
            waited.append(float((first - arrival)[inside].mean()) if inside.any() else None)
        response[client] = tuple(waited)
    return Curves(tuple(map(float, centres)), service, response, accumulated, backlogged)


def _backlogged(calls: Sequence[CallSample], times_s: Sequence[float]) -> tuple[bool, ...]:
    """Return for each time whether some call waited at every moment since the previous time."""
    waits: list[list[float]] = []
    """Periods in which some call waited: start and end, in order."""
    for call in sorted(calls, key=lambda each: each.arrival_s):
        begin_s = call.arrival_s
        end_s = call.end_s if call.queue_delay_s is None else begin_s + call.queue_delay_s
        if waits and begin_s <= waits[-1][1]:
            waits[-1][1] = max(waits[-1][1], end_s)
        else:
            waits.append([begin_s, end_s])
    found, number = [], 0
    before_s = times_s[0] if times_s else 0.0
    for time_s in times_s:
        while number < len(waits) and waits[number][1] < time_s:
            number += 1
        found.append(number < len(waits) and waits[number][0] <= before_s)
        before_s = time_s
    return tuple(found)
