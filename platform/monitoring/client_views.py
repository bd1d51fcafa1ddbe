"""Clients as operators see them: who is served, who is entitled to how much, and what holds for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairserve.platform.control.port import CallView, LevelView
from fairserve.scheduling.admission import LimitsInUse

MAX_CALLS = 100
"""Calls under way that are told of one client."""

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
    """A tenant's app and user, as of now."""

    tenant: str
    app: str
    user: str
    service_1m: float
    """Of the last minute, by the ledger's cost, the present bucket included; so the others."""
    service_5m: float
    service_30m: float
    service_share: float | None
    """Of the service of the last five minutes, among those shown; None if there was none."""
    entitled_share: float | None
    """Its weight over the sum of the weights of those shown that were served in the last five minutes or
    have calls under way; None if it is none of them."""
    weight: float
    queued_calls: int
    running_calls: int
    refused_calls: int
    """Of the last 30 minutes."""
    blocked: bool
    user_rpm: int | None
    """Limits under overload, calls a minute: of the user, and of its app as a whole."""
    app_rpm: int | None
    counter: float | None
    """The feeder's counter above that of the least served sibling with calls queued, in the feeder's
    unit, the largest of all models; None where none is queued, or the feeder counts nothing."""


@dataclass(frozen=True, slots=True)
class ClientPage:
    """A part of the list of clients."""

    items: list[ClientView]
    total: int
    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class ClientDetail:
    """One client and what is known of it."""

    client: ClientView
    tenant_weight: float
    app_weight: float
    user_weight: float
    bucket_s: float
    at: list[float]
    """Ends of the closed buckets, UTC epoch seconds, the earliest first."""
    service: list[float | None]
    """In each; None where it may be one of the clients without a name."""
    refused: list[int]
    levels: list[LevelView]
    limits: LimitsInUse
    calls: list[CallView]
    """Under way, the first accepted first, at most :data:`MAX_CALLS`."""
