"""``/v1/usage`` for apps and tenants, ``/admin/usage`` for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from fairserve.platform.auth import CurrentPrincipal, Principal, require_admin, require_tenant
from fairserve.platform.db.session import ReadSession
from fairserve.platform.errors import InvalidRequestError, NotFoundError
from fairserve.platform.usage import reports
from fairserve.platform.usage.schemas import UsageQuery, UsageReport

router = APIRouter()


async def _reader(principal: CurrentPrincipal, request: Request) -> Principal:
    """An app key, a tenant key, or an admin key that names a tenant."""
    if principal.scope != "app":
        return await require_tenant(principal, request)
    if request.query_params.get("tenant", principal.tenant_id) != principal.tenant_id:
        raise NotFoundError("there is no such tenant", param="tenant")
    return principal


@router.get("/v1/usage")
def read_usage(
    session: ReadSession,
    principal: Annotated[Principal, Depends(_reader)],
    query: Annotated[UsageQuery, Query()],
) -> UsageReport:
    """An app key reads its app's usage, a tenant key that of all its apps."""
    assert principal.tenant_id is not None
    if "tenant" in query.group_by:
        raise InvalidRequestError("allowed groups: app, user, day", param="group_by")
    app_id = query.app or principal.app_id
    foreign = principal.scope == "app" and app_id != principal.app_id
    if app_id is not None and (
        foreign or not reports.knows_app(session, principal.tenant_id, app_id)
    ):
        raise NotFoundError("there is no such app", param="app")
    return reports.report(session, query, tenant_id=principal.tenant_id, app_id=app_id)


@router.get("/admin/usage", dependencies=[Depends(require_admin)])
def read_all_usage(session: ReadSession, query: Annotated[UsageQuery, Query()]) -> UsageReport:
    """Usage of all tenants, or of one."""
    return reports.report(session, query, tenant_id=query.tenant, app_id=query.app)
