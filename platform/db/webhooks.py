"""Tables of webhooks: the tenants' endpoints, the events, and the state of their deliveries.

An event is written in the transaction that writes the ledger's rows, with a delivery for each endpoint
that it is for. Its payload may name a user, so erasures reach it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import JSON, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base

URL_CHARS = 2000
TYPE_CHARS = 64
ERROR_CHARS = 200

DeliveryState = Literal["pending", "delivered", "dead"]


class WebhookEndpoint(Base):
    """A URL of a tenant. Its signing secrets are derived and stored nowhere."""

    __tablename__ = "webhook_endpoints"
    __table_args__ = (Index(None, "tenant_id", "created_at"),)

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    url: Mapped[str] = mapped_column(String(URL_CHARS))
    description: Mapped[str] = mapped_column(String(NAME_CHARS))
    since: Mapped[dict[str, float]] = mapped_column(JSON)
    """Subscribed event types, each with the UTC epoch second of its beginning: a journal that is read
    again sends no earlier event."""
    enabled: Mapped[bool]
    disabled_reason: Mapped[str] = mapped_column(String(ERROR_CHARS))
    """Why the platform disabled it; empty if it did not."""
    secret_version: Mapped[int]
    secret_id: Mapped[str] = mapped_column(String(16))
    """Which of the platform's secret keys the signing secret is derived from."""
    previous_secret_id: Mapped[str | None] = mapped_column(String(16))
    previous_until: Mapped[datetime | None]
    """Until then the secret of the version before signs, too."""
    failures: Mapped[int]
    """Attempts that failed since the last one that did not."""
    rests_until: Mapped[datetime | None]
    """After many failures in a row nothing is sent until then."""
    tried_at: Mapped[datetime | None]
    """When deliveries were taken last: endpoints take turns."""
    created_at: Mapped[datetime]


class WebhookEvent(Base):
    """Something that happened. Its id follows from what it was, so it is written once."""

    __tablename__ = "webhook_events"
    __table_args__ = (Index(None, "tenant_id", "user_id"), Index(None, "created_at"))

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(TYPE_CHARS))
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    """User that the payload names; empty for none."""
    origin_at: Mapped[datetime]
    """Time at which its run or call began: an erasure applies to events that began before it."""
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime]


class WebhookDelivery(Base):
    """An event on its way to an endpoint: pending, then delivered or dead."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index(None, "endpoint_id", "state", "next_attempt_at"),
        Index(None, "endpoint_id", "created_at"),
        Index(None, "event_id"),
        Index(None, "state", "settled_at"),
    )

    endpoint_id: Mapped[str] = mapped_column(
        ForeignKey("webhook_endpoints.id", ondelete="CASCADE"), primary_key=True
    )
    event_id: Mapped[str] = mapped_column(
        ForeignKey("webhook_events.id", ondelete="CASCADE"), primary_key=True
    )
    state: Mapped[DeliveryState] = mapped_column(String(16))
    attempts: Mapped[int]
    """Begun since it was queued."""
    next_attempt_at: Mapped[datetime]
    lease_until: Mapped[datetime | None]
    """Time until which a process that sends it must store the outcome."""
    last_status: Mapped[int | None]
    last_error: Mapped[str] = mapped_column(String(ERROR_CHARS))
    created_at: Mapped[datetime]
    settled_at: Mapped[datetime | None]
    """When it was delivered, or given up."""
