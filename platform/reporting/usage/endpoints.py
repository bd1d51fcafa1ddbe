"""``/v1/usage`` for apps and tenants, ``/admin/usage`` for operators, and their interactions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from fairserve.platform.db.session import ReadSession
from fairserve.platform.reporting.settings import ReportSettings
from fairserve.platform.reporting.usage import interactions, reports
from fairserve.platform.reporting.usage.formats import MAX_ANSWERED_ROWS, MEDIA_TYPES, Ask, document
from fairserve.platform.reporting.usage.schemas import (
    Group,
    InteractionPage,
    InteractionUsageQuery,
    UsageReport,
    UsageRequest,
)
from fairserve.platform.tenancy.principals import require_admin
from fairserve.platform.tenancy.readers import Reader, asked_app

router = APIRouter()

_FORMATS: dict[int | str, dict[str, Any]] = {
    200: {"content": {media_type.split(";")[0]: {} for media_type in MEDIA_TYPES.values()}}
}


@router.get("/v1/usage", response_model=UsageReport, responses=_FORMATS)
def read_usage(
    session: ReadSession,
    principal: Reader,
    request: Request,
    query: Annotated[UsageRequest, Query()],
) -> Response:
    """Return an app's usage to its key, and the usage of all its apps to a tenant key."""
    reports.reject_tenant_groups(query)
    app_id = asked_app(session, principal, query)
    settings: ReportSettings = request.app.state.settings
    ask = reports.reporter(session, settings, tenant_id=principal.tenant_id, app_id=app_id)
    return _answer(query, ask, "user" if app_id else "app")


@router.get(
    "/admin/usage",
    dependencies=[Depends(require_admin)],
    response_model=UsageReport,
    responses=_FORMATS,
)
def read_all_usage(
    session: ReadSession, request: Request, query: Annotated[UsageRequest, Query()]
) -> Response:
    """Return the usage of one or all tenants."""
    settings: ReportSettings = request.app.state.settings
    ask = reports.reporter(session, settings, tenant_id=query.tenant, app_id=query.app)
    return _answer(query, ask, "app" if query.tenant else "tenant")


@router.get("/v1/usage/interactions")
def read_interactions(
    session: ReadSession, principal: Reader, query: Annotated[InteractionUsageQuery, Query()]
) -> InteractionPage:
    """List the interactions of an app, or of a tenant's apps, newest first."""
    app_id = asked_app(session, principal, query)
    return interactions.page(session, query, tenant_id=principal.tenant_id, app_id=app_id)


@router.get("/admin/usage/interactions", dependencies=[Depends(require_admin)])
def read_all_interactions(
    session: ReadSession, query: Annotated[InteractionUsageQuery, Query()]
) -> InteractionPage:
    """List the interactions of one or all tenants, newest first."""
    return interactions.page(session, query, tenant_id=query.tenant, app_id=query.app)


def _answer(query: UsageRequest, ask: Ask, default_group: Group) -> Response:
    found = document(query, query.format, ask, default_group, MAX_ANSWERED_ROWS)
    return Response(found.content, media_type=found.media_type, headers=dict(found.headers))
