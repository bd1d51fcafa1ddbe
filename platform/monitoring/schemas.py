"""Queries and responses of ``/admin/live`` and ``/admin/clients``."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from pydantic import BaseModel, Field

from fairserve.platform.base.money import NANO, Amount
from fairserve.platform.control.messages import CallView, LevelView
from fairserve.platform.db.schemas import MAX_PAGE, NamePart, ObjectId, Paging, Strict
from fairserve.platform.monitoring.activity import BUCKETS
from fairserve.platform.monitoring.client_views import ClientSort, ClientView
from fairserve.platform.monitoring.history import SHOWN_CLIENTS
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.throttling.base import LimitUse


class LiveQuery(Strict):
    """Query of the live view: a tenant, and the maximum numbers of named clients and buckets."""

    tenant: ObjectId | None = None
    clients: int = Field(SHOWN_CLIENTS, ge=0, le=100)
    buckets: int = Field(BUCKETS, ge=1, le=BUCKETS)


class ClientQuery(Paging):
    """Query of the clients; ``query`` is part of a tenant's, app's or user's id, or of a name."""

    tenant: ObjectId | None = None
    sort: ClientSort = "service_5m"
    query: NamePart = ""


class FloodQuery(Strict):
    """Query of the flooding clients. ``tenant`` is for admin keys."""

    tenant: ObjectId | None = None
    limit: int = Field(10, ge=1, le=MAX_PAGE)


class FloodingClient(BaseModel):
    """A client that floods, and the signs of it."""

    client: ClientView
    signs: list[str]


class FloodsOut(BaseModel):
    """Flooding clients, largest share of the service first."""

    items: list[FloodingClient]
    queued_calls: int
    refused_calls: int
    """Rejected calls of the clients with most of them."""
    names: dict[str, str]
    """Names of the tenants and apps in ``items``."""


class BudgetOut(BaseModel):
    """A budget in its current period."""

    limit: Amount
    spent: Amount
    held: Amount
    """Cost reserved for queued and running calls."""
    reset_s: float
    soft: bool
    """True if the soft budget is exceeded."""
    scope: str


class ClientLimitsOut(BaseModel):
    """Limits of the next call, from the quota subject with the least remaining; null is no limit."""

    requests: LimitUse | None
    tokens: LimitUse | None
    budget: BudgetOut | None
    throttle: LimitUse | None
    """Overload limit, active only under overload."""


class ClientCallOut(BaseModel):
    """A queued or running call, with its tokens and service so far."""

    state: str
    """``held`` (queued, and waits for memory of its run), ``queued`` or ``running``."""
    interaction: str
    name: str
    stage: int
    agent: str | None
    model: str
    worker: str | None
    accepted_at: datetime
    age_s: float
    queue_s: float | None
    """Null while the call is queued."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    service: float


class WeightsOut(BaseModel):
    """Weights whose product is the weight of a client."""

    tenant: float
    app: float
    user: float


class ClientOut(BaseModel):
    """One client; the arrays have one entry per bucket, earliest first."""

    client: ClientView
    weights: WeightsOut
    bucket_s: float
    at: list[float]
    """Ends of the buckets, in UTC epoch seconds."""
    service: list[float | None]
    """Service by bucket; null if the client may be one of the unnamed."""
    refused: list[int]
    levels: list[LevelView]
    limits: ClientLimitsOut
    calls: list[ClientCallOut]


def limits_out(limits: LimitsInUse) -> ClientLimitsOut:
    """Return the API's view of limits."""
    contract, budget = limits.contract, None
    if contract.budget is not None:
        held = contract.budget._asdict()
        for name in ("limit", "spent", "held"):
            held[name] = Decimal(held[name]) / NANO
        budget = BudgetOut.model_construct(**held)
    return ClientLimitsOut(
        requests=contract.requests,
        tokens=contract.tokens,
        budget=budget,
        throttle=limits.throttle,
    )


def call_out(view: CallView) -> ClientCallOut:
    """Return the API's view of a call."""
    record = view.record
    return ClientCallOut(
        state=view.state,
        interaction=record.interaction_id,
        name=record.name,
        stage=record.stage,
        agent=record.agent,
        model=record.served_model or record.model,
        worker=record.worker,
        accepted_at=datetime.fromtimestamp(record.accepted_at, UTC),
        age_s=record.duration_s or 0.0,
        queue_s=record.queue_delay_s,
        prompt_tokens=record.input_tokens + record.system_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        service=record.service,
    )
