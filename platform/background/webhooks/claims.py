"""Claims of due deliveries, and the outcomes of their attempts.

A claim stores a lease in the delivery's row (:mod:`fairserve.platform.db.leases`); nothing is locked
while it is sent. Endpoints are served round-robin with a few deliveries each, the least recently served
first, and a tenant has a share of a process's concurrent deliveries. An endpoint with repeated failures
pauses, so that it does not delay others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import orjson
from sqlalchemy import Select, false, or_, select
from sqlalchemy.orm import Session

from fairserve.platform.background.webhooks.retries import delay_s, pause_s
from fairserve.platform.background.webhooks.signature import signing_secrets
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.db import audit
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.leases import LONGEST_WAIT, LeasedTable, RowLease
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent

DELIVERIES = LeasedTable(
    WebhookDelivery,
    unfinished=("pending",),
    attempts="attempts",
    fence=("lease_until",),
    due_at="next_attempt_at",
)
PER_ENDPOINT = 4
"""Concurrent deliveries of a process to one endpoint; one if its last attempt failed."""
GONE = "the receiver responded with 410 (gone)"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that this process must send before the lease expires."""

    lease: RowLease[WebhookDelivery]
    tenant: str
    endpoint_id: str
    event_id: str
    url: str
    body: bytes
    secrets: tuple[bytes, ...]
    """Signing secrets in force at the claim; empty if their platform key is no longer set."""
    attempts: int
    """Attempts of this delivery, including this one."""
    failing: bool
    """True if the last attempt at the endpoint failed."""


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """Outcome of an attempt: the HTTP status of the response, if any, and the error."""

    status: int | None
    error: str = ""
    retry_after_s: float | None = None

    @property
    def delivered(self) -> bool:
        """Return whether the receiver accepted the delivery."""
        return self.status is not None and 200 <= self.status < 300


_UNFINISHED = (
    select(WebhookDelivery.event_id)
    .where(WebhookDelivery.state.in_(DELIVERIES.unfinished))
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Slots:
    """Concurrent deliveries of a process, of which each tenant has a share."""

    all: SharedLimit
    failing: SharedLimit
    """Those of them that failing endpoints may have."""

    def take(self, tenant: str, failing: bool, most: int) -> int:
        """Take up to ``most`` slots; return how many."""
        taken = 0
        while taken < most and self.all.take(tenant) is None:
            if failing and self.failing.take(tenant) is not None:
                self.all.release(tenant)
                break
            taken += 1
        return taken

    def release(self, tenant: str, failing: bool, number: int = 1) -> None:
        """Release slots that were taken."""
        self.all.release(tenant, number)
        if failing:
            self.failing.release(tenant, number)


def claim(
    sessions: SessionFactory,
    hasher: KeyHasher,
    now: datetime,
    lease: timedelta,
    slots: Slots,
    running: Collection[Claimed],
) -> list[Claimed]:
    """Claim due deliveries, for each of which a slot is taken until the caller releases it.

    ``running`` are the deliveries that this process is sending.
    """
    busy = Counter(each.endpoint_id for each in running)
    tenants = {each.tenant for each in running}
    full = _Full(
        endpoints=[endpoint for endpoint, number in busy.items() if number >= PER_ENDPOINT],
        tenants=[each for each in tenants if slots.all.full(each)],
        failing=[each for each in tenants if slots.failing.full(each)],
        all_failing=slots.failing.used >= slots.failing.limit,
    )
    free = slots.all.limit - slots.all.used
    # On SQLite a transaction that may write would block all others.
    if not _any_due(sessions, now, full):
        return []
    claimed: list[Claimed] = []
    with sessions.begin() as session:
        found = _endpoints(now, free, full).with_for_update(
            of=WebhookEndpoint, key_share=True, skip_locked=True
        )
        for endpoint in session.scalars(found).all():
            tenant, failing = endpoint.tenant_id, endpoint.failures > 0
            most = (1 if failing else PER_ENDPOINT) - busy[endpoint.id]
            places = slots.take(tenant, failing, most)
            taken = _take(session, endpoint, now, lease, places) if places else []
            slots.release(tenant, failing, places - len(taken))
            if not taken:
                continue
            endpoint.tried_at = now
            secrets = tuple(signing_secrets(hasher, endpoint, now))
            claimed += [replace(each, secrets=secrets) for each in taken]
    return claimed


def any_due(sessions: SessionFactory, now: datetime) -> bool:
    """Return whether a delivery is due. Nothing is claimed."""
    return _any_due(sessions, now, _Full((), (), (), all_failing=False))


def _any_due(sessions: SessionFactory, now: datetime, full: _Full) -> bool:
    with sessions() as session:
        reading = read_only(session)
        if reading.scalar(_UNFINISHED) is None:
            return False  # as a rule, once a second: the other statement takes five times as long
        return bool(reading.scalars(_endpoints(now, 1, full)).all())


class _Full(NamedTuple):
    """Owners that get no more slots at present."""

    endpoints: Sequence[str]
    tenants: Sequence[str]
    failing: Sequence[str]
    """Tenants whose failing endpoints get none."""
    all_failing: bool
    """True if no failing endpoint gets one, so that those first in order do not hide others."""


def _endpoints(now: datetime, limit: int, full: _Full) -> Select[WebhookEndpoint]:
    """Return the endpoints with due deliveries, least recently served first."""
    due = (
        select(WebhookDelivery.event_id)
        .where(WebhookDelivery.endpoint_id == WebhookEndpoint.id, DELIVERIES.waiting(now))
        .exists()
    )
    return (
        select(WebhookEndpoint)
        .join(Tenant, Tenant.id == WebhookEndpoint.tenant_id)
        .where(
            WebhookEndpoint.enabled.is_(True),
            or_(
                WebhookEndpoint.rests_until.is_(None),
                WebhookEndpoint.rests_until <= now,
                WebhookEndpoint.rests_until > now + LONGEST_WAIT,
            ),
            WebhookEndpoint.id.not_in(full.endpoints),
            WebhookEndpoint.tenant_id.not_in(full.tenants),
            or_(
                WebhookEndpoint.failures == 0,
                false() if full.all_failing else WebhookEndpoint.tenant_id.not_in(full.failing),
            ),
            Tenant.deleted_at.is_(None),
            due,
        )
        .order_by(WebhookEndpoint.tried_at.asc().nulls_first(), WebhookEndpoint.id)
        .limit(limit)
    )


def _take(
    session: Session, endpoint: WebhookEndpoint, now: datetime, lease: timedelta, limit: int
) -> list[Claimed]:
    statement = (
        select(WebhookDelivery, WebhookEvent.payload)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .where(WebhookDelivery.endpoint_id == endpoint.id)
        .order_by(WebhookDelivery.next_attempt_at, WebhookDelivery.event_id)
        .limit(limit)
    )
    taken = []
    for delivery, payload in session.execute(DELIVERIES.due(statement, now)).all():
        DELIVERIES.take(delivery, now, lease)
        taken.append(
            Claimed(
                lease=DELIVERIES.lease(delivery),
                tenant=endpoint.tenant_id,
                endpoint_id=endpoint.id,
                event_id=delivery.event_id,
                url=endpoint.url,
                body=orjson.dumps(payload),
                secrets=(),
                attempts=delivery.attempts,
                failing=endpoint.failures > 0,
            )
        )
    return taken


def record(
    sessions: SessionFactory,
    claimed: Claimed,
    outcome: DeliveryOutcome,
    now: datetime,
    max_attempts: int,
) -> None:
    """Store the outcome of an attempt; has no effect if the lease is lost."""
    with sessions.begin() as session:
        endpoint = session.get(
            WebhookEndpoint, claimed.endpoint_id, with_for_update={"key_share": True}
        )
        delivery = claimed.lease.locked_row(session)
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
        pause = pause_s(endpoint.failures)
        endpoint.rests_until = now + timedelta(seconds=pause) if pause else None
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
    """Release a delivery with an interrupted attempt, which is due again at once."""
    with sessions.begin() as session:
        claimed.lease.end(session)


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
