"""Operations on a tenant's endpoints: register, change, rotate, delete, test, replay.

Methods use the session of the HTTP request and do not commit. URLs are checked before, so that no DNS
lookup holds a transaction open. Changes are audited without the query of a URL, which may contain
secrets.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from fairserve.platform.background.webhooks import repository
from fairserve.platform.background.webhooks.event_types import TYPES
from fairserve.platform.background.webhooks.events import test_event
from fairserve.platform.background.webhooks.outbox import MAX_PENDING, write
from fairserve.platform.background.webhooks.schemas import (
    DeadDeliveryOut,
    DeadQuery,
    DeliveriesQuery,
    DeliveryOut,
    WebhookCreate,
    WebhookOut,
    WebhookPatch,
)
from fairserve.platform.background.webhooks.signature import GRACE, derive, secret_text
from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.db import audit
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.rows import count, read_page
from fairserve.platform.db.schemas import Page, Paging, view_of
from fairserve.platform.db.webhooks import DeliveryState, WebhookDelivery, WebhookEndpoint
from fairserve.platform.tenancy.apps.repository import tenant_exists
from fairserve.platform.tenancy.auth import Principal, check_manager

MAX_ENDPOINTS = 20
"""Maximum number of endpoints of a tenant."""


class Webhooks:
    """The endpoints of one tenant within one request.

    Raises NotFoundError for an unknown tenant and for endpoints of another tenant.
    """

    def __init__(self, session: Session, principal: Principal, hasher: KeyHasher) -> None:
        assert principal.tenant_id is not None
        self._session = session
        self._principal = principal
        self._tenant_id = principal.tenant_id
        self._hasher = hasher
        if not tenant_exists(session, self._tenant_id):
            raise NotFoundError("there is no such tenant", param="tenant")

    def get(self, endpoint_id: str, *, lock: bool = False) -> WebhookEndpoint:
        """Return one endpoint."""
        endpoint = repository.get(self._session, self._tenant_id, endpoint_id, lock=lock)
        if endpoint is None:
            raise NotFoundError("there is no such webhook", param="webhook_id")
        return endpoint

    def page(self, paging: Paging) -> Page[WebhookOut]:
        """Return a page of the tenant's endpoints, oldest first."""
        rows, total = read_page(self._session, repository.listed(self._tenant_id), paging)
        return Page.of([self.describe(row) for row in rows], total, paging)

    def describe(self, endpoint: WebhookEndpoint) -> WebhookOut:
        """Return the API's view of an endpoint."""
        return _out(endpoint, self._hasher)

    def create(self, body: WebhookCreate) -> tuple[WebhookEndpoint, str]:
        """Register an endpoint; return it with its signing secret."""
        check_manager(self._principal, body)
        # Serialises concurrent registrations, so that the limit is enforced.
        self._session.get(Tenant, self._tenant_id, with_for_update={"key_share": True})
        if count(self._session, repository.listed(self._tenant_id)) >= MAX_ENDPOINTS:
            raise ConflictError(
                f"a tenant has at most {MAX_ENDPOINTS} webhooks", code="too_many_webhooks"
            )
        now = utc_now()
        endpoint = WebhookEndpoint(
            id=new_id("wh"),
            tenant_id=self._tenant_id,
            url=body.url,
            description=body.description,
            managed_by=body.managed_by,
            since=_since({}, body.events, now),
            enabled=body.enabled,
            disabled_reason="",
            secret_version=1,
            secret_id=self._hasher.secret_id,
            failures=0,
            created_at=now,
        )
        self._session.add(endpoint)
        self._session.flush()
        self._audit("webhook.create", endpoint, None)
        return endpoint, self._secret(endpoint)

    def change(self, endpoint_id: str, body: WebhookPatch) -> WebhookEndpoint:
        """Change URL, events, description or state.

        An endpoint that is enabled again gets new events and its pending deliveries.
        """
        check_manager(self._principal, body)
        endpoint = self.get(endpoint_id, lock=True)
        before = _audited(endpoint)
        now = utc_now()
        if body.url is not None:
            endpoint.url = body.url
            _wake(endpoint)
        if body.description is not None:
            endpoint.description = body.description
        if "managed_by" in body.model_fields_set:
            endpoint.managed_by = body.managed_by
        if body.events is not None:
            endpoint.since = _since(endpoint.since, body.events, now)
        if body.enabled and not endpoint.enabled:
            endpoint.since = _since({}, endpoint.since, now)
            endpoint.disabled_reason = ""
            _wake(endpoint)
        if body.enabled is not None:
            endpoint.enabled = body.enabled
        self._session.flush()
        self._audit("webhook.change", endpoint, before)
        return endpoint

    def delete(self, endpoint_id: str) -> WebhookOut:
        """Delete an endpoint with its deliveries; return its last state."""
        endpoint = self.get(endpoint_id, lock=True)
        was, before = self.describe(endpoint), _audited(endpoint)
        self._session.delete(endpoint)
        self._session.flush()
        self._record("webhook.delete", endpoint_id, before, None)
        return was

    def rotate(self, endpoint_id: str) -> tuple[WebhookEndpoint, str]:
        """Create a new signing secret; the previous one signs, too, for a day."""
        endpoint = self.get(endpoint_id, lock=True)
        before = _audited(endpoint)
        endpoint.previous_secret_id = endpoint.secret_id
        endpoint.previous_until = utc_now() + GRACE
        endpoint.secret_version += 1
        endpoint.secret_id = self._hasher.secret_id
        self._session.flush()
        self._audit("webhook.rotate", endpoint, before)
        return endpoint, self._secret(endpoint)

    def test(self, endpoint_id: str) -> str:
        """Queue a test event for this endpoint only; return its id."""
        endpoint = self.get(endpoint_id, lock=True)
        if not endpoint.enabled:
            raise ConflictError("the webhook is disabled; enable it first", code="disabled")
        self._check_capacity(endpoint_id)
        now = utc_now()
        _wake(endpoint)
        event = test_event(self._tenant_id, endpoint_id, now)
        write(self._session, [event], {self._tenant_id: [endpoint]}, now)
        self._record("webhook.test", endpoint_id, None, {"event": event.id})
        return event.id

    def deliveries(self, endpoint_id: str, query: DeliveriesQuery) -> Page[DeliveryOut]:
        """Return a page of an endpoint's deliveries, newest first."""
        found = repository.deliveries(self.get(endpoint_id).id, query.state)
        rows, total = read_page(self._session, found, query)
        return Page.of([_delivery(delivery, type_) for delivery, type_, _ in rows], total, query)

    def replay(self, endpoint_id: str, event_id: str) -> None:
        """Requeue a delivered or dead event. Raises ConflictError if it is pending."""
        endpoint = self.get(endpoint_id, lock=True)
        delivery = repository.delivery(self._session, endpoint_id, event_id)
        if delivery is None:
            raise NotFoundError("there is no such delivery", param="event_id")
        if delivery.state == "pending":
            raise ConflictError("the delivery is pending already", code="pending")
        self._check_capacity(endpoint_id)
        before = {"state": delivery.state, "attempts": delivery.attempts}
        for name, value in repository.queued_again(utc_now()).items():
            setattr(delivery, name, value)
        _wake(endpoint)
        self._session.flush()
        self._record("webhook.replay", endpoint_id, before, {"event": event_id})

    def replay_dead(self, endpoint_id: str) -> tuple[int, int]:
        """Requeue all dead deliveries, oldest first.

        Returns the number of requeued ones, and of those not requeued because too many are pending.
        """
        endpoint = self.get(endpoint_id, lock=True)
        room = MAX_PENDING - self._in_state(endpoint_id, "pending")
        replayed = repository.replay_dead(self._session, endpoint_id, utc_now(), max(0, room))
        _wake(endpoint)
        self._record("webhook.replay", endpoint_id, None, {"replayed": replayed})
        return replayed, self._in_state(endpoint_id, "dead")

    # --- parts ------------------------------------------------------------------------------------

    def _secret(self, endpoint: WebhookEndpoint) -> str:
        secret = derive(self._hasher, endpoint.id, endpoint.secret_version, self._hasher.secret_id)
        assert secret is not None
        return secret_text(secret)

    def _in_state(self, endpoint_id: str, state: DeliveryState) -> int:
        return count(self._session, repository.deliveries(endpoint_id, state))

    def _check_capacity(self, endpoint_id: str) -> None:
        if self._in_state(endpoint_id, "pending") >= MAX_PENDING:
            raise ConflictError(
                f"the webhook has {MAX_PENDING} pending deliveries, which is the limit; retry later",
                code="too_many_pending",
            )

    def _audit(self, action: str, endpoint: WebhookEndpoint, before: dict[str, Any] | None) -> None:
        self._record(action, endpoint.id, before, _audited(endpoint))

    def _record(
        self,
        action: str,
        endpoint_id: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        audit.record(
            self._session,
            self._principal,
            action,
            endpoint_id,
            tenant_id=self._tenant_id,
            before=before,
            after=after,
        )


def webhooks_page(session: Session, hasher: KeyHasher, query: Paging) -> Page[WebhookOut]:
    """Return the endpoints of all tenants, oldest first."""
    rows, total = read_page(session, repository.listed(None), query)
    return Page.of([_out(row, hasher) for row in rows], total, query)


def dead_deliveries(session: Session, query: DeadQuery) -> Page[DeadDeliveryOut]:
    """Return the dead deliveries of all tenants, latest first."""
    rows, total = read_page(session, repository.dead(), query)
    items = [
        DeadDeliveryOut(
            **_delivery(delivery, type_).model_dump(),
            tenant_id=tenant_id,
            webhook_id=delivery.endpoint_id,
        )
        for delivery, type_, tenant_id in rows
    ]
    return Page.of(items, total, query)


def _out(endpoint: WebhookEndpoint, hasher: KeyHasher) -> WebhookOut:
    until = endpoint.previous_until
    return view_of(
        WebhookOut,
        endpoint,
        events=[name for name in TYPES if name in endpoint.since],
        disabled_reason=endpoint.disabled_reason or None,
        secret_outdated=endpoint.secret_id != hasher.secret_id,
        previous_secret_until=until if until is not None and until > utc_now() else None,
    )


def _delivery(row: WebhookDelivery, event_type: str) -> DeliveryOut:
    return view_of(
        DeliveryOut,
        row,
        type=event_type,
        next_attempt_at=row.next_attempt_at if row.state == "pending" else None,
        last_error=row.last_error or None,
        delivered_at=row.settled_at if row.state == "delivered" else None,
    )


def _since(was: dict[str, float], types: Collection[str], now: datetime) -> dict[str, float]:
    """Return the start of each subscription; that of existing ones is unchanged."""
    return {name: was.get(name, now.timestamp()) for name in types}


def _wake(endpoint: WebhookEndpoint) -> None:
    """Reset the failures of an endpoint, so that its next attempt is at once."""
    endpoint.failures, endpoint.rests_until = 0, None


def _audited(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {
        "url": endpoint.url.partition("?")[0],
        "events": sorted(endpoint.since),
        "description": endpoint.description,
        "managed_by": endpoint.managed_by,
        "enabled": endpoint.enabled,
        "disabled_reason": endpoint.disabled_reason,
        "secret_version": endpoint.secret_version,
    }
