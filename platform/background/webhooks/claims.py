"""Deliveries that are due, taken by one process at a time, and how their attempts went.

Taking one leaves a lease in its row, in a short transaction; nothing is locked while it is sent. A
process that dies leaves the lease behind, and when that is over the delivery is due again. Endpoints
take turns, by when each was served last, with few deliveries each, and one that fails again and again
rests, so that it holds up nobody else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import orjson
from sqlalchemy import ColumnElement, Select, or_, select, update
from sqlalchemy.orm import Session

from fairserve.platform.background.webhooks.retries import delay_s, rest_s
from fairserve.platform.background.webhooks.signature import signing_secrets
from fairserve.platform.db import audit
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent

PER_ENDPOINT = 4
"""Deliveries to one endpoint at a time, of one process; one where its last attempt failed."""
GONE = "the receiver answered 410 (gone)"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that this process is to send before its lease is over."""

    endpoint_id: str
    event_id: str
    url: str
    body: bytes
    secrets: tuple[bytes, ...]
    """In force when it was taken; none where they are lost."""
    attempts: int
    """This one included."""
    lease_until: datetime
    failing: bool
    """Whether the last attempt at its endpoint failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt went: ``status`` of the answer, if there was one, and what was wrong."""

    status: int | None
    error: str = ""
    retry_after_s: float | None = None

    @property
    def delivered(self) -> bool:
        """Whether the receiver has it."""
        return self.status is not None and 200 <= self.status < 300


def claim(
    sessions: SessionFactory,
    hasher: KeyHasher,
    now: datetime,
    lease: timedelta,
    slots: int,
    failing_slots: int,
    busy: Mapping[str, int],
) -> list[Claimed]:
    """Take at most so many deliveries that are due, of them ``failing_slots`` of endpoints that failed
    last. ``busy``: how many this process sends to endpoints already.
    """
    full = [endpoint_id for endpoint_id, number in busy.items() if number >= PER_ENDPOINT]
    with sessions() as session:
        # On SQLite a transaction that may write would keep all others waiting.
        if not read_only(session).scalars(_endpoints(now, 1, full, failing_slots)).all():
            return []
    claimed: list[Claimed] = []
    with sessions.begin() as session:
        found = _endpoints(now, slots, full, failing_slots).with_for_update(
            of=WebhookEndpoint, key_share=True, skip_locked=True
        )
        for endpoint in session.scalars(found).all():
            room = min(failing_slots, 1) if endpoint.failures else PER_ENDPOINT
            room = min(room - busy.get(endpoint.id, 0), slots - len(claimed))
            taken = _take(session, endpoint, now, lease, room) if room > 0 else []
            if not taken:
                continue
            endpoint.tried_at = now
            failing_slots -= len(taken) if endpoint.failures else 0
            secrets = tuple(signing_secrets(hasher, endpoint, now))
            claimed += [replace(each, secrets=secrets) for each in taken]
    return claimed


def _endpoints(
    now: datetime, limit: int, full: Collection[str], failing_slots: int
) -> Select[WebhookEndpoint]:
    """Endpoints for which something is due, the one served longest ago first."""
    due = (
        select(WebhookDelivery.event_id)
        .where(WebhookDelivery.endpoint_id == WebhookEndpoint.id, *_due(now))
        .exists()
    )
    statement = (
        select(WebhookEndpoint)
        .join(Tenant, Tenant.id == WebhookEndpoint.tenant_id)
        .where(
            WebhookEndpoint.enabled.is_(True),
            or_(WebhookEndpoint.rests_until.is_(None), WebhookEndpoint.rests_until <= now),
            WebhookEndpoint.id.not_in(full),
            Tenant.deleted_at.is_(None),
            due,
        )
        .order_by(WebhookEndpoint.tried_at.asc().nulls_first(), WebhookEndpoint.id)
        .limit(limit)
    )
    return statement if failing_slots > 0 else statement.where(WebhookEndpoint.failures == 0)


def _take(
    session: Session, endpoint: WebhookEndpoint, now: datetime, lease: timedelta, limit: int
) -> list[Claimed]:
    rows = session.execute(
        select(WebhookDelivery, WebhookEvent.payload)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .where(WebhookDelivery.endpoint_id == endpoint.id, *_due(now))
        .order_by(WebhookDelivery.next_attempt_at, WebhookDelivery.event_id)
        .limit(limit)
        .with_for_update(of=WebhookDelivery, skip_locked=True)
    ).all()
    taken = []
    for delivery, payload in rows:
        delivery.attempts += 1
        delivery.lease_until = now + lease
        taken.append(
            Claimed(
                endpoint_id=endpoint.id,
                event_id=delivery.event_id,
                url=endpoint.url,
                body=orjson.dumps(payload),
                secrets=(),
                attempts=delivery.attempts,
                lease_until=delivery.lease_until,
                failing=endpoint.failures > 0,
            )
        )
    return taken


def record(
    sessions: SessionFactory, claimed: Claimed, outcome: Outcome, now: datetime, max_attempts: int
) -> None:
    """Store how an attempt went. It changes nothing where the lease was over and another took it."""
    with sessions.begin() as session:
        endpoint = session.get(
            WebhookEndpoint, claimed.endpoint_id, with_for_update={"key_share": True}
        )
        delivery = session.scalars(
            select(WebhookDelivery)
            .where(
                WebhookDelivery.endpoint_id == claimed.endpoint_id,
                WebhookDelivery.event_id == claimed.event_id,
                WebhookDelivery.lease_until == claimed.lease_until,
            )
            .with_for_update()
        ).one_or_none()
        if endpoint is None or delivery is None:
            return
        delivery.lease_until = None
        delivery.last_status = outcome.status
        delivery.last_error = outcome.error
        if outcome.delivered:
            delivery.state, delivery.settled_at = "delivered", now
            endpoint.failures, endpoint.rests_until = 0, None
            return
        endpoint.failures += 1
        rest = rest_s(endpoint.failures)
        endpoint.rests_until = now + timedelta(seconds=rest) if rest else None
        if outcome.status == 410 and endpoint.enabled:
            _disable(session, endpoint)
        if delivery.state != "pending":
            return
        if outcome.status == 410 or claimed.attempts >= max_attempts:
            delivery.state, delivery.settled_at = "dead", now
        else:
            wait_s = delay_s(
                claimed.endpoint_id, claimed.event_id, claimed.attempts, outcome.retry_after_s
            )
            delivery.next_attempt_at = now + timedelta(seconds=wait_s)


def release(sessions: SessionFactory, claimed: Claimed) -> None:
    """Give back a delivery that was not sent to its end: it is due as it was."""
    with sessions.begin() as session:
        session.execute(
            update(WebhookDelivery)
            .where(
                WebhookDelivery.endpoint_id == claimed.endpoint_id,
                WebhookDelivery.event_id == claimed.event_id,
                WebhookDelivery.lease_until == claimed.lease_until,
            )
            .values(lease_until=None)
        )


def _due(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        WebhookDelivery.state == "pending",
        WebhookDelivery.next_attempt_at <= now,
        or_(WebhookDelivery.lease_until.is_(None), WebhookDelivery.lease_until <= now),
    )


def _disable(session: Session, endpoint: WebhookEndpoint) -> None:
    endpoint.enabled, endpoint.disabled_reason = False, GONE
    audit.record(
        session,
        None,
        "webhook.disable",
        endpoint.id,
        tenant_id=endpoint.tenant_id,
        after={"enabled": False, "disabled_reason": GONE},
    )
