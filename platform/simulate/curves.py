"""Figures over time, for plots: what each client was served, and how long it waited for a first token.

A point is a window of the same width as those of the service difference; windows overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairserve.scheduling.cost import Cost
from fairserve.scheduling.metrics import CallSample, Service, Windows

_STEPS = 4
"""Points in half a window."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Values at centres of windows, by client; the clients with most service first."""

    centres_s: tuple[float, ...]
    service_per_s: dict[str, tuple[float, ...]]
    response_s: dict[str, tuple[float | None, ...]]
    """Mean time to first token of the calls that arrived in the window; None where none did."""
    accumulated: dict[str, tuple[float, ...]]
    """Service from the beginning to the centre."""


def curves_of(calls: Sequence[CallSample], cost: Cost, windows: Windows) -> Curves:
    """Of all clients. O(calls * points)."""
    if not calls:
        return Curves((), {}, {}, {})
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
    for client in sorted(by_client, key=lambda name: (-total[name], name)):
        own = by_client[client]
        served = Service(own, cost)
        service[client] = tuple(
            served.between(float(centre) - half_s, float(centre) + half_s) / (2 * half_s)
            for centre in centres
        )
        accumulated[client] = tuple(served.between(begin_s, float(centre)) for centre in centres)
        seen = [(c.arrival_s, c.first_token_s) for c in own if c.first_token_s is not None]
        arrival, first = np.asarray(seen, dtype=np.float64).reshape(-1, 2).T
        waited = []
        for centre in centres:
            inside = (centre - half_s <= arrival) & (arrival < centre + half_s)
            waited.append(float((first - arrival)[inside].mean()) if inside.any() else None)
        response[client] = tuple(waited)
    return Curves(tuple(map(float, centres)), service, response, accumulated)
