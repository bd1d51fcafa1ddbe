"""Detect flooding clients: those far above their share, or with most of the queue of a model.

Each model has a queue of its own: a long one of another model neither hides a flood nor makes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairserve.platform.monitoring.client_views import ClientView
from fairserve.platform.monitoring.clients import ClientReading

ABOVE, FAR_ABOVE = 1.5, 3.0
"""Thresholds of the ratio of received to entitled share for the badges."""
PART, LARGE_PART = 0.05, 0.3
"""Thresholds of the difference of received and entitled share for the badges."""
LEAST_CALLS = 10
"""Minimum number of queued or rejected calls for a badge."""
RANKED = 50
"""Clients of each ranking that are considered."""


class Totals(NamedTuple):
    """Totals over all visible clients."""

    queues: Mapping[str, int]
    """Queued calls by model."""
    refused: int
    """Rejected calls of the clients with most of them."""


class Sign(NamedTuple):
    """A badge with its text and tone."""

    words: str
    tone: str


class Floods(NamedTuple):
    """Flooding clients, and the totals that they are measured by."""

    of_all: Totals
    worst: list[ClientView]


def find_floods(reading: ClientReading, most: int) -> Floods:
    """Return the flooding clients of a reading. On the event loop, three rankings."""
    served = reading.page(limit=RANKED, sort="service_5m")
    queued = reading.page(limit=RANKED, sort="queued_calls")
    rejected = reading.page(limit=RANKED, sort="refused_calls")
    of_all = Totals(reading.queues(), sum(each.refused_calls for each in rejected.items))
    return Floods(of_all, worst((*served.items, *queued.items), of_all, most))


def signs(client: ClientView, of_all: Totals) -> list[Sign]:
    """Return the badges of a client, worst first; empty for most clients."""
    found = [
        sign
        for sign in (share_sign(client), _of_queue(client, of_all), _of_rejections(client, of_all))
        if sign is not None
    ]
    return sorted(found, key=lambda sign: sign.tone != "bad")


def floods(client: ClientView, of_all: Totals) -> bool:
    """Return whether an operator should check this client first."""
    return any(sign.tone == "bad" for sign in signs(client, of_all))


def worst(clients: Iterable[ClientView], of_all: Totals, most: int) -> list[ClientView]:
    """Return the flooding clients without duplicates, largest share first."""
    found = {(each.tenant, each.app, each.user): each for each in clients if floods(each, of_all)}
    ranked = sorted(
        found.values(), key=lambda each: (-(each.service_share or 0.0), -each.queued_calls)
    )
    return ranked[:most]


def share_sign(client: ClientView) -> Sign | None:
    """Return the badge of a client's share of the service, if any."""
    got, due = client.service_share, client.entitled_share
    if got is None or not due:
        return None
    times, part = got / due, got - due
    if times < ABOVE or part < PART:
        return None
    far = times >= FAR_ABOVE or part >= LARGE_PART
    return Sign(f"takes {times:.1f} times its share", "bad" if far else "warn")


def _of_queue(client: ClientView, of_all: Totals) -> Sign | None:
    """Return the badge of the model of whose queue the client has the largest share, if any."""
    shares = [
        (queued / of_all.queues[model], model)
        for model, queued in client.queued_by_model.items()
        if queued >= LEAST_CALLS and 2 * queued >= of_all.queues.get(model, 0) > 0
    ]
    if not shares:
        return None
    share, model = max(shares)
    return Sign(f"{100 * share:.{0 if share >= 0.995 else 1}f} % of the queue of {model}", "bad")


def _of_rejections(client: ClientView, of_all: Totals) -> Sign | None:
    refused = client.refused_calls
    if refused < LEAST_CALLS or 2 * refused < of_all.refused:
        return None
    return Sign(f"{refused:,} calls rejected", "warn")
