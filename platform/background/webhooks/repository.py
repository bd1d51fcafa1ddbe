"""Queries on endpoints and deliveries. Every query for a tenant is restricted to that tenant."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.rows import changed
from fairserve.platform.db.webhooks import (
    DeliveryState,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
)

Row = tuple[WebhookDelivery, str, str]
"""A delivery with its event's type and its tenant."""
Rows: TypeAlias = "Select[WebhookDelivery, str, str]"
_ROWS: Rows = select(WebhookDelivery, WebhookEvent.type, WebhookEvent.tenant_id).join(
    WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id
)


def get(
    session: Session, tenant_id: str, endpoint_id: str, *, lock: bool = False
) -> WebhookEndpoint | None:
    """Return the tenant's endpoint; ``lock`` locks its row."""
    statement = select(WebhookEndpoint).where(
        WebhookEndpoint.id == endpoint_id, WebhookEndpoint.tenant_id == tenant_id
    )
    return session.scalars(statement.with_for_update() if lock else statement).one_or_none()


def listed(tenant_id: str | None) -> Select[WebhookEndpoint]:
    """Return the statement of the endpoints of one tenant, or of all live ones, oldest first."""
    endpoints = select(WebhookEndpoint)
    if tenant_id is not None:
        endpoints = endpoints.where(WebhookEndpoint.tenant_id == tenant_id)
    else:
        tenants = select(Tenant.id).where(Tenant.deleted_at.is_(None))
        endpoints = endpoints.where(WebhookEndpoint.tenant_id.in_(tenants))
    return endpoints.order_by(WebhookEndpoint.created_at, WebhookEndpoint.id)


def delivery(session: Session, endpoint_id: str, event_id: str) -> WebhookDelivery | None:
    """Return one delivery of an endpoint, locked."""
    return session.get(WebhookDelivery, (endpoint_id, event_id), with_for_update=True)


def deliveries(endpoint_id: str, state: DeliveryState | None) -> Rows:
    """Return the statement of an endpoint's deliveries in a state or in all, newest first."""
    found = _ROWS.where(WebhookDelivery.endpoint_id == endpoint_id)
    if state is not None:
        found = found.where(WebhookDelivery.state == state)
    return found.order_by(WebhookDelivery.created_at.desc(), WebhookDelivery.event_id.desc())


def dead() -> Rows:
    """Return the statement of all tenants' dead deliveries, latest first."""
    return _ROWS.where(WebhookDelivery.state == "dead").order_by(
        WebhookDelivery.settled_at.desc(), WebhookDelivery.endpoint_id, WebhookDelivery.event_id
    )


def replay_dead(session: Session, endpoint_id: str, now: datetime, limit: int) -> int:
    """Requeue an endpoint's dead deliveries, oldest first; return their number."""
    oldest = (
        select(WebhookDelivery.event_id)
        .where(WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state == "dead")
        .order_by(WebhookDelivery.created_at, WebhookDelivery.event_id)
        .limit(limit)
    )
    chosen = WebhookDelivery.event_id.in_(oldest.scalar_subquery())
    requeued = update(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id, chosen)
    return changed(session, requeued.values(queued_again(now)))


def queued_again(now: datetime) -> dict[str, object]:
    """Return the columns of a requeued delivery."""
    return {
        "state": "pending",
        "attempts": 0,
        "next_attempt_at": now,
        "lease_until": None,
        "settled_at": None,
    }
