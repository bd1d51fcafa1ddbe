"""``/v1/webhooks`` for tenants (and admins who name one), ``/admin/webhooks`` for operators.

A signing secret is only in the response to the request that created it, which must not be cached.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks import repository
from fairserve.platform.background.webhooks.delivery import guard_of
from fairserve.platform.background.webhooks.guard import UnsafeUrlError
from fairserve.platform.background.webhooks.schemas import (
    DeadDeliveryOut,
    DeadQuery,
    DeliveriesQuery,
    DeliveryOut,
    QueuedOut,
    ReplayOut,
    WebhookCreate,
    WebhookOut,
    WebhookPatch,
    WebhookWithSecret,
)
from fairserve.platform.background.webhooks.service import Webhooks
from fairserve.platform.base.errors import InvalidRequestError, RateLimitedError, UnavailableError
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import Page, TenantPaging, TenantQuery, view_of
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.principals import TenantPrincipal, require_admin

router = APIRouter()

Named = Annotated[TenantQuery, Query()]

_looking_up = SharedLimit(4, 1 / 2)
"""Concurrent URL checks: slow DNS lookups must not occupy all threads of the API."""


def _webhooks(request: Request, session: WriteSession, principal: TenantPrincipal) -> Webhooks:
    return Webhooks(session, principal, request.app.state.authenticator.hasher)


def _webhooks_to_read(
    request: Request, session: ReadSession, principal: TenantPrincipal
) -> Webhooks:
    return Webhooks(session, principal, request.app.state.authenticator.hasher)


WritableWebhooks = Annotated[Webhooks, Depends(_webhooks, scope="function")]
ReadableWebhooks = Annotated[Webhooks, Depends(_webhooks_to_read, scope="function")]


@router.post("/v1/webhooks", status_code=status.HTTP_201_CREATED)
def create_webhook(
    body: WebhookCreate,
    request: Request,
    session: WriteSession,
    principal: TenantPrincipal,
    response: Response,
    _: Named,
) -> WebhookWithSecret:
    """Register a URL; only this response contains its signing secret."""
    _check(request, principal, body.url)
    webhooks = _webhooks(request, session, principal)
    return _with_secret(webhooks, *webhooks.create(body), response)


@router.get("/v1/webhooks")
def list_webhooks(
    webhooks: ReadableWebhooks, query: Annotated[TenantPaging, Query()]
) -> Page[WebhookOut]:
    """List the tenant's webhooks, oldest first."""
    return webhooks.page(query)


@router.get("/v1/webhooks/{webhook_id}")
def read_webhook(webhook_id: str, webhooks: ReadableWebhooks, _: Named) -> WebhookOut:
    """Return one webhook."""
    return webhooks.describe(webhooks.get(webhook_id))


@router.patch("/v1/webhooks/{webhook_id}")
def change_webhook(
    webhook_id: str,
    body: WebhookPatch,
    request: Request,
    session: WriteSession,
    principal: TenantPrincipal,
    _: Named,
) -> WebhookOut:
    """Change URL, events or description, disable or enable."""
    if body.url is not None:
        _check(request, principal, body.url)
    webhooks = _webhooks(request, session, principal)
    return webhooks.describe(webhooks.change(webhook_id, body))


@router.delete("/v1/webhooks/{webhook_id}")
def delete_webhook(webhook_id: str, webhooks: WritableWebhooks, _: Named) -> WebhookOut:
    """Delete a webhook with its deliveries."""
    return webhooks.delete(webhook_id)


@router.post("/v1/webhooks/{webhook_id}/rotate", status_code=status.HTTP_201_CREATED)
def rotate_secret(
    webhook_id: str, webhooks: WritableWebhooks, response: Response, _: Named
) -> WebhookWithSecret:
    """Create a new signing secret; for a day, messages are signed with the old one, too."""
    return _with_secret(webhooks, *webhooks.rotate(webhook_id), response)


@router.post("/v1/webhooks/{webhook_id}/test", status_code=status.HTTP_202_ACCEPTED)
def send_test(webhook_id: str, webhooks: WritableWebhooks, _: Named) -> QueuedOut:
    """Queue a ``webhook.test`` event."""
    return QueuedOut(event_id=webhooks.test(webhook_id))


@router.get("/v1/webhooks/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: str, webhooks: ReadableWebhooks, query: Annotated[DeliveriesQuery, Query()]
) -> Page[DeliveryOut]:
    """List deliveries, newest first."""
    rows, total = webhooks.deliveries(webhook_id, query)
    return Page.of([_delivery(delivery, type_) for delivery, type_, _ in rows], total, query)


@router.post(
    "/v1/webhooks/{webhook_id}/deliveries/{event_id}/replay", status_code=status.HTTP_202_ACCEPTED
)
def replay_delivery(
    webhook_id: str, event_id: str, webhooks: WritableWebhooks, _: Named
) -> QueuedOut:
    """Requeue a delivered or dead event, with all attempts."""
    webhooks.replay(webhook_id, event_id)
    return QueuedOut(event_id=event_id)


@router.post("/v1/webhooks/{webhook_id}/replay", status_code=status.HTTP_202_ACCEPTED)
def replay_dead(webhook_id: str, webhooks: WritableWebhooks, _: Named) -> ReplayOut:
    """Requeue all dead deliveries."""
    replayed, left = webhooks.replay_dead(webhook_id)
    return ReplayOut(replayed=replayed, left=left)


@router.get("/admin/webhooks/dead", dependencies=[Depends(require_admin)])
def list_dead(session: ReadSession, query: Annotated[DeadQuery, Query()]) -> Page[DeadDeliveryOut]:
    """List the dead deliveries of all tenants, latest first."""
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


def _check(request: Request, principal: Principal, url: str) -> None:
    """Check a URL before the transaction begins, because a DNS lookup can be slow."""
    settings: BackgroundSettings = request.app.state.settings.background
    full = _looking_up.take(principal.sharer)
    if full is not None:
        text = "too many URLs of this tenant" if full == "owner" else "too many URLs"
        error = RateLimitedError if full == "owner" else UnavailableError
        raise error(f"{text} are being checked; retry in 1 s", headers={"Retry-After": "1"})
    try:
        guard_of(settings).check(url)
    except UnsafeUrlError as error:
        raise InvalidRequestError(f"url: {error}", param="url") from None
    finally:
        _looking_up.release(principal.sharer)


def _with_secret(
    webhooks: Webhooks, endpoint: WebhookEndpoint, secret: str, response: Response
) -> WebhookWithSecret:
    response.headers["Cache-Control"] = "no-store"
    return WebhookWithSecret(**webhooks.describe(endpoint).model_dump(), secret=secret)


def _delivery(row: WebhookDelivery, event_type: str) -> DeliveryOut:
    return view_of(
        DeliveryOut,
        row,
        type=event_type,
        next_attempt_at=row.next_attempt_at if row.state == "pending" else None,
        last_error=row.last_error or None,
        delivered_at=row.settled_at if row.state == "delivered" else None,
    )
