"""Views of clients for operators: service, entitlement, limits and calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_CALLS = 100
"""Maximum number of queued and running calls in the view of one client."""

ClientSort = Literal[
    "service_1m",
    "service_5m",
    "service_30m",
    "queued_calls",
    "running_calls",
    "refused_calls",
    "name",
]


@dataclass(frozen=True, slots=True)
class ClientView:
    """The current state of a tenant's app and user."""

    tenant: str
    app: str
    user: str
    service_1m: float
    """Service of the last minute in the ledger's unit, with the open bucket; likewise the next two."""
    service_5m: float
    service_30m: float
    service_share: float | None
    """Share of the shown clients' service in the last five minutes; None if there was none."""
    entitled_share: float | None
    """Entitled share beside the shown clients with demand in the last five minutes:
    what it demands at most. None if it had no demand."""
    weight: float
    queued_calls: int
    queued_by_model: dict[str, int]
    running_calls: int
    refused_calls: int
    """Rejected calls of the last 30 minutes."""
    blocked: bool
    user_rpm: int | None
    """Overload limits of the user and of its app as a whole, in calls per minute."""
    app_rpm: int | None
    counter: float | None
    """Difference of the feeder's counter to that of the least served sibling with queued calls, in the
    feeder's unit, as the maximum over models; None without queued calls or counters."""


@dataclass(frozen=True, slots=True)
class ClientPage:
    """A page of the list of clients."""

    items: list[ClientView]
    total: int
    limit: int
    offset: int
