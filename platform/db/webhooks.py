"""Tables of webhooks: endpoints of tenants, events, and the state of deliveries.

An event is written in the transaction that writes the ledger's rows, with a delivery for each
subscribed endpoint. Its payload may name a user, so erasures apply to it.
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
    """A URL of a tenant. Its signing secrets are derived and never stored."""

    __tablename__ = "webhook_endpoints"
    __table_args__ = (Index(None, "tenant_id", "created_at"),)

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    url: Mapped[str] = mapped_column(String(URL_CHARS))
    description: Mapped[str] = mapped_column(String(NAME_CHARS))
    managed_by: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of the declaration that manages the endpoint; null: none."""
    since: Mapped[dict[str, float]] = mapped_column(JSON)
    """Subscribed event types with the start of the subscription in UTC epoch seconds; a journal that is
    read again sends no earlier event."""
    enabled: Mapped[bool]
    disabled_reason: Mapped[str] = mapped_column(String(ERROR_CHARS))
    """Reason for which the platform disabled the endpoint; empty if it did not."""
    secret_version: Mapped[int]
    secret_id: Mapped[str] = mapped_column(String(16))
    """Id of the platform's secret key from which the signing secret is derived."""
    previous_secret_id: Mapped[str | None] = mapped_column(String(16))
    previous_until: Mapped[datetime | None]
    """Time until which the previous secret signs, too."""
    failures: Mapped[int]
    """Consecutive failed attempts."""
    rests_until: Mapped[datetime | None]
    """Time until which nothing is sent, after many consecutive failures."""
    tried_at: Mapped[datetime | None]
    """Time of the last claim of deliveries; the endpoint with the oldest is served next."""
    created_at: Mapped[datetime]


class WebhookEvent(Base):
    """An event. Its id is derived from its content, so that it is written once."""

    __tablename__ = "webhook_events"
    __table_args__ = (Index(None, "tenant_id", "user_id"), Index(None, "created_at"))

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(TYPE_CHARS))
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    """User that the payload names; empty for none."""
    origin_at: Mapped[datetime]
    """Start of the event's run or call; an erasure applies to events that began before it."""
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime]


class WebhookDelivery(Base):
    """The delivery of an event to an endpoint: pending, then delivered or dead."""

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
    """Attempts since the delivery was queued."""
    next_attempt_at: Mapped[datetime]
    lease_until: Mapped[datetime | None]
    """End of the sender's lease; it must store the outcome before."""
    last_status: Mapped[int | None]
    last_error: Mapped[str] = mapped_column(String(ERROR_CHARS))
    created_at: Mapped[datetime]
    settled_at: Mapped[datetime | None]
    """Time of the success or of the last failed attempt."""
