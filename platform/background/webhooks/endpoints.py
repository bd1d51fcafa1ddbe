"""``/v1/webhooks`` for tenants (and admins who name one), ``/admin/webhooks`` for operators.

A signing secret is only in the response to the request that created it, which must not be cached.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status

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
from fairserve.platform.background.webhooks.service import Webhooks, dead_deliveries, webhooks_page
from fairserve.platform.background.webhooks.url_checks import check_url
from fairserve.platform.db.schemas import Page, Paging, TenantPaging, TenantQuery
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.db.webhooks import WebhookEndpoint
from fairserve.platform.tenancy.principals import TenantPrincipal, require_admin

router = APIRouter()

Named = Annotated[TenantQuery, Query()]


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
    check_url(request.app.state.settings.background, principal, body.url)
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
        check_url(request.app.state.settings.background, principal, body.url)
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
    return webhooks.deliveries(webhook_id, query)


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


@router.get("/admin/webhooks", dependencies=[Depends(require_admin)])
def list_all_webhooks(
    request: Request, session: ReadSession, query: Annotated[Paging, Query()]
) -> Page[WebhookOut]:
    """List the webhooks of all tenants, oldest first."""
    return webhooks_page(session, request.app.state.authenticator.hasher, query)


@router.get("/admin/webhooks/dead", dependencies=[Depends(require_admin)])
def list_dead(session: ReadSession, query: Annotated[DeadQuery, Query()]) -> Page[DeadDeliveryOut]:
    """List the dead deliveries of all tenants, latest first."""
    return dead_deliveries(session, query)


def _with_secret(
    webhooks: Webhooks, endpoint: WebhookEndpoint, secret: str, response: Response
) -> WebhookWithSecret:
    response.headers["Cache-Control"] = "no-store"
    return WebhookWithSecret(**webhooks.describe(endpoint).model_dump(), secret=secret)
