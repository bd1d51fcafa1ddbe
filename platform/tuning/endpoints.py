"""``/admin/throttling``: the system, its parameters with their history, and rejections.

Tenants and apps read their own rejections under ``/v1/throttling``.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from fairserve.platform.db.base import utc_now
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import Page, Paging, TenantQuery
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.principals import AdminPrincipal, TenantPrincipal, require_admin
from fairserve.platform.tenancy.readers import Reader, asked_app
from fairserve.platform.tuning import events, repository, service
from fairserve.platform.tuning.preview.schemas import PreviewIn, PreviewOut
from fairserve.platform.tuning.preview.service import Previews
from fairserve.platform.tuning.quota_preview import (
    QuotaPreviewOut,
    QuotaPreviewQuery,
    quota_preview,
)
from fairserve.platform.tuning.schemas import (
    EventOut,
    EventQuery,
    RejectionOut,
    ThrottlingChanged,
    ThrottlingOut,
    ThrottlingPut,
    VersionOut,
)

router = APIRouter()


@router.get("/admin/throttling", dependencies=[Depends(require_admin)])
def read_throttling(request: Request, session: ReadSession) -> ThrottlingOut:
    """Return the system in force, and each parameter with value, default, unit and description."""
    settings = request.app.state.settings.tuning
    return service.report(settings, service.load_current(session, settings))


@router.put("/admin/throttling")
def change_throttling(
    body: ThrottlingPut, request: Request, session: WriteSession, principal: AdminPrincipal
) -> ThrottlingChanged:
    """Change the settings at run time; omitted parameters are reset to their defaults."""
    state = request.app.state
    return service.change_and_apply(session, principal, state.settings.tuning, state.control, body)


@router.post("/admin/throttling/preview", dependencies=[Depends(require_admin)])
async def preview_throttling(body: PreviewIn, request: Request) -> PreviewOut:
    """Replay the last minutes with and without a change, and return both results.

    The settings in force do not change. 409 while another preview runs, or without a recording.
    """
    previews: Previews = request.app.state.preview
    return await previews.make(body, request.is_disconnected)


@router.get("/admin/throttling/history", dependencies=[Depends(require_admin)])
def list_versions(session: ReadSession, query: Annotated[Paging, Query()]) -> Page[VersionOut]:
    """List all versions, newest first."""
    rows, total = read_page(session, repository.history(), query)
    return Page.of([VersionOut.model_validate(row) for row in rows], total, query)


@router.get("/admin/throttling/events", dependencies=[Depends(require_admin)])
def list_all_events(session: ReadSession, query: Annotated[EventQuery, Query()]) -> Page[EventOut]:
    """List the rejections of one or all tenants, newest first."""
    return events.page(session, query, tenant_id=query.tenant, app_id=query.app)


@router.get("/admin/throttling/events/{call_id}", dependencies=[Depends(require_admin)])
def read_any_event(call_id: str, request: Request, session: ReadSession) -> RejectionOut:
    """Return one rejection, with its explanation."""
    currency = request.app.state.settings.tenancy.currency
    return events.one(session, call_id, tenant_id=None, app_id=None, currency=currency)


@router.get("/v1/quotas/preview")
def preview_quota(
    request: Request,
    session: ReadSession,
    principal: TenantPrincipal,
    query: Annotated[QuotaPreviewQuery, Query()],
) -> QuotaPreviewOut:
    """Return how many accepted calls of the last hour each proposed limit would have rejected.

    Nothing changes. Each limit is previewed alone, by the tokens that calls used.
    """
    assert principal.tenant_id is not None
    enforcement = request.app.state.settings.tenancy.quota_enforcement
    return quota_preview(session, principal.tenant_id, query, enforcement, utc_now())


@router.get("/v1/throttling/events")
def list_events(
    session: ReadSession, principal: Reader, query: Annotated[EventQuery, Query()]
) -> Page[EventOut]:
    """List the rejections of an app, or of a tenant's apps, newest first."""
    app_id = asked_app(session, principal, query)
    return events.page(session, query, tenant_id=principal.tenant_id, app_id=app_id)


@router.get("/v1/throttling/events/{call_id}")
def read_event(
    call_id: str,
    request: Request,
    session: ReadSession,
    principal: Reader,
    _: Annotated[TenantQuery, Query()],
) -> RejectionOut:
    """Return one rejection of an app, or of a tenant's apps, with its explanation."""
    currency = request.app.state.settings.tenancy.currency
    tenant_id, app_id = principal.tenant_id, principal.app_id
    return events.one(session, call_id, tenant_id=tenant_id, app_id=app_id, currency=currency)
