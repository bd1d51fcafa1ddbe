"""Requests and responses of ``/v1/webhooks``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from fairserve.platform.background.webhooks.event_types import TYPES, EventType
from fairserve.platform.db.base import NAME_CHARS
from fairserve.platform.db.schemas import NO_CONTROL_CHARACTERS, Managed, Paging, TenantPaging
from fairserve.platform.db.webhooks import URL_CHARS, DeliveryState

Url = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=URL_CHARS)]
Types = Annotated[list[EventType], Field(min_length=1, max_length=len(TYPES))]
Description = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=NAME_CHARS, pattern=NO_CONTROL_CHARACTERS),
]


class WebhookCreate(Managed):
    """A new endpoint."""

    url: Url
    """Target of the deliveries: an https URL of a host with public addresses only."""
    events: Types
    description: Description = ""
    enabled: bool = True


class WebhookPatch(Managed):
    """Changes of an endpoint; omitted or null fields are unchanged, except for ``managed_by``."""

    url: Url | None = None
    events: Types | None = None
    description: Description | None = None
    enabled: bool | None = None


class DeliveriesQuery(TenantPaging):
    """Filters of an endpoint's deliveries; all states by default."""

    state: DeliveryState | None = None


class DeadQuery(Paging):
    """A page of all tenants' dead deliveries."""


class WebhookOut(BaseModel):
    """An endpoint."""

    id: str
    tenant_id: str
    url: str
    events: list[EventType]
    description: str
    managed_by: str | None
    enabled: bool
    disabled_reason: str | None
    """Reason for which the platform disabled it."""
    failures: int
    """Consecutive failed attempts."""
    rests_until: datetime | None
    """End of the pause after many consecutive failures."""
    secret_version: int
    secret_outdated: bool
    """True if the secret is derived from a previous platform key; rotate it before that is removed."""
    previous_secret_until: datetime | None
    """Time until which the previous secret signs, too."""
    created_at: datetime


class WebhookWithSecret(WebhookOut):
    """An endpoint with its new signing secret, shown once."""

    secret: str = Field(repr=False)


class DeliveryOut(BaseModel):
    """The delivery of an event to an endpoint."""

    event_id: str
    """The ``webhook-id`` of the message."""
    type: str
    state: DeliveryState
    attempts: int
    next_attempt_at: datetime | None
    last_status: int | None
    """HTTP status of the receiver's last response."""
    last_error: str | None
    created_at: datetime
    delivered_at: datetime | None


class DeadDeliveryOut(DeliveryOut):
    """A dead delivery of any tenant."""

    tenant_id: str
    webhook_id: str


class QueuedOut(BaseModel):
    """An event queued for an endpoint."""

    event_id: str


class ReplayOut(BaseModel):
    """Numbers of requeued dead deliveries, and of those beyond the limit."""

    replayed: int
    left: int
