"""Queries on endpoints and deliveries. Every query for a tenant is restricted to that tenant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.orm import Session

from fairserve.platform.db.webhooks import (
    DeliveryState,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
)

Row = tuple[WebhookDelivery, str, str]
"""A delivery with its event's type and its tenant."""


def get(
    session: Session, tenant_id: str, endpoint_id: str, *, lock: bool = False
) -> WebhookEndpoint | None:
    """Return the tenant's endpoint; ``lock`` locks its row."""
    statement = select(WebhookEndpoint).where(
        WebhookEndpoint.id == endpoint_id, WebhookEndpoint.tenant_id == tenant_id
    )
    return session.scalars(statement.with_for_update() if lock else statement).one_or_none()


def count(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's endpoints."""
    statement = select(func.count(WebhookEndpoint.id)).where(WebhookEndpoint.tenant_id == tenant_id)
    return session.scalar(statement) or 0


def page(session: Session, tenant_id: str, limit: int, offset: int) -> Sequence[WebhookEndpoint]:
    """Return a tenant's endpoints, oldest first."""
    return session.scalars(
        select(WebhookEndpoint)
        .where(WebhookEndpoint.tenant_id == tenant_id)
        .order_by(WebhookEndpoint.created_at, WebhookEndpoint.id)
        .limit(limit)
        .offset(offset)
    ).all()


def delivery(session: Session, endpoint_id: str, event_id: str) -> WebhookDelivery | None:
    """Return one delivery of an endpoint, locked."""
    return session.get(WebhookDelivery, (endpoint_id, event_id), with_for_update=True)


def deliveries(
    session: Session, endpoint_id: str, state: DeliveryState | None, limit: int, offset: int
) -> tuple[list[Row], int]:
    """Return a page of an endpoint's deliveries, newest first, and their number."""
    conditions = [WebhookDelivery.endpoint_id == endpoint_id]
    if state is not None:
        conditions.append(WebhookDelivery.state == state)
    order = (WebhookDelivery.created_at.desc(), WebhookDelivery.event_id.desc())
    rows = session.execute(_rows(conditions).order_by(*order).limit(limit).offset(offset))
    return [(found, name, tenant_id) for found, name, tenant_id in rows], count_deliveries(
        session, *conditions
    )


def dead(session: Session, limit: int, offset: int) -> tuple[list[Row], int]:
    """Return a page of all tenants' dead deliveries, latest first, and their number."""
    conditions = [WebhookDelivery.state == "dead"]
    order = (
        WebhookDelivery.settled_at.desc(),
        WebhookDelivery.endpoint_id,
        WebhookDelivery.event_id,
    )
    rows = session.execute(_rows(conditions).order_by(*order).limit(limit).offset(offset))
    return [(found, name, tenant_id) for found, name, tenant_id in rows], count_deliveries(
        session, *conditions
    )


def count_deliveries(session: Session, *conditions: ColumnElement[bool]) -> int:
    """Return the number of deliveries that match the conditions."""
    return session.scalar(select(func.count(WebhookDelivery.event_id)).where(*conditions)) or 0


def replay_dead(session: Session, endpoint_id: str, now: datetime, limit: int) -> int:
    """Requeue an endpoint's dead deliveries, oldest first; return their number."""
    oldest = (
        select(WebhookDelivery.event_id)
        .where(WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state == "dead")
        .order_by(WebhookDelivery.created_at, WebhookDelivery.event_id)
        .limit(limit)
    )
    result = session.execute(
        update(WebhookDelivery)
        .where(
            WebhookDelivery.endpoint_id == endpoint_id,
            WebhookDelivery.event_id.in_(oldest.scalar_subquery()),
        )
        .values(queued_again(now)),
        execution_options={"synchronize_session": False},
    )
    return int(getattr(result, "rowcount", 0))


def queued_again(now: datetime) -> dict[str, object]:
    """Return the columns of a requeued delivery."""
    return {
        "state": "pending",
        "attempts": 0,
        "next_attempt_at": now,
        "lease_until": None,
        "settled_at": None,
    }


def _rows(conditions: Sequence[ColumnElement[bool]]) -> Select[WebhookDelivery, str, str]:
    return (
        select(WebhookDelivery, WebhookEvent.type, WebhookEvent.tenant_id)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .where(*conditions)
    )
