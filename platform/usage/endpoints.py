"""``/v1/usage`` for apps and tenants, ``/admin/usage`` for operators; below, single interactions."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from fairserve.platform.auth import CurrentPrincipal, Principal, require_admin, require_tenant
from fairserve.platform.db.session import ReadSession
from fairserve.platform.errors import InvalidRequestError, NotFoundError
from fairserve.platform.usage import interactions, reports
from fairserve.platform.usage.formats import MEDIA_TYPES, document
from fairserve.platform.usage.schemas import (
    Group,
    InteractionPage,
    InteractionQuery,
    UsageFilter,
    UsageReport,
    UsageRequest,
)

router = APIRouter()

_FORMATS: dict[int | str, dict[str, Any]] = {
    200: {"content": {media_type.split(";")[0]: {} for media_type in MEDIA_TYPES.values()}}
}


async def _reader(principal: CurrentPrincipal, request: Request) -> Principal:
    """An app key, a tenant key, or an admin key that names a tenant."""
    if principal.scope != "app":
        return await require_tenant(principal, request)
    if request.query_params.get("tenant", principal.tenant_id) != principal.tenant_id:
        raise NotFoundError("there is no such tenant", param="tenant")
    return principal


Reader = Annotated[Principal, Depends(_reader)]


@router.get("/v1/usage", response_model=UsageReport, responses=_FORMATS)
def read_usage(
    session: ReadSession,
    principal: Reader,
    request: Request,
    query: Annotated[UsageRequest, Query()],
) -> Response:
    """An app key reads its app's usage, a tenant key that of all its apps."""
    if "tenant" in query.group_by:
        raise InvalidRequestError("allowed groups: app, user, model, day, hour", param="group_by")
    app_id = _app(session, principal, query)
    ask = partial(reports.report, session, tenant_id=principal.tenant_id, app_id=app_id)
    return _answer(request, query, ask, "user" if app_id else "app")


@router.get(
    "/admin/usage",
    dependencies=[Depends(require_admin)],
    response_model=UsageReport,
    responses=_FORMATS,
)
def read_all_usage(
    session: ReadSession, request: Request, query: Annotated[UsageRequest, Query()]
) -> Response:
    """Usage of all tenants, or of one."""
    ask = partial(reports.report, session, tenant_id=query.tenant, app_id=query.app)
    return _answer(request, query, ask, "app" if query.tenant else "tenant")


@router.get("/v1/usage/interactions")
def read_interactions(
    session: ReadSession, principal: Reader, query: Annotated[InteractionQuery, Query()]
) -> InteractionPage:
    """Single interactions of an app, or of a tenant's apps, newest first."""
    app_id = _app(session, principal, query)
    return interactions.page(session, query, tenant_id=principal.tenant_id, app_id=app_id)


@router.get("/admin/usage/interactions", dependencies=[Depends(require_admin)])
def read_all_interactions(
    session: ReadSession, query: Annotated[InteractionQuery, Query()]
) -> InteractionPage:
    """Single interactions of all tenants, or of one."""
    return interactions.page(session, query, tenant_id=query.tenant, app_id=query.app)


def _app(session: ReadSession, principal: Principal, query: UsageFilter) -> str | None:
    """The app that is asked for, or the key's own. Raises NotFoundError for anybody else's."""
    assert principal.tenant_id is not None
    app_id = query.app or principal.app_id
    foreign = principal.scope == "app" and app_id != principal.app_id
    if app_id is not None and (
        foreign or not reports.knows_app(session, principal.tenant_id, app_id)
    ):
        raise NotFoundError("there is no such app", param="app")
    return app_id


def _answer(
    request: Request, query: UsageRequest, ask: partial[UsageReport], default_group: Group
) -> Response:
    settings = request.app.state.settings
    asked = partial(ask, currency=settings.currency)
    found = document(query, query.format, asked, default_group)
    return Response(found.content, media_type=found.media_type, headers=dict(found.headers))
