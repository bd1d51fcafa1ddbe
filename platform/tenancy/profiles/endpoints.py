"""``/v1/apps/{app_id}/profile`` for tenants, ``/admin/apps/{app_id}/profile`` for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from fairserve.platform.db.schemas import Page, TenantPaging, TenantQuery
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.principals import AdminPrincipal, TenantPrincipal
from fairserve.platform.tenancy.profiles import service
from fairserve.platform.tenancy.profiles.dependencies import Options
from fairserve.platform.tenancy.profiles.schemas import (
    AppProfileOut,
    ProfileModeBody,
    ProfileVersionOut,
)

router = APIRouter()


@router.get("/v1/apps/{app_id}/profile")
def read_profile(
    app_id: str,
    session: ReadSession,
    principal: TenantPrincipal,
    options: Options,
    _: Annotated[TenantQuery, Query()],
) -> AppProfileOut:
    """Return an app's profile in force with its reason, the declared one, and observed usage."""
    return service.describe(session, service.app_of(session, principal.tenant_id, app_id), options)


@router.get("/v1/apps/{app_id}/profile/history")
def read_history(
    app_id: str,
    session: ReadSession,
    principal: TenantPrincipal,
    query: Annotated[TenantPaging, Query()],
) -> Page[ProfileVersionOut]:
    """Return the profiles that were in force, newest first, with the reason of each change."""
    app = service.app_of(session, principal.tenant_id, app_id)
    return service.history_page(session, app, query)


@router.put("/admin/apps/{app_id}/profile")
def set_profile(
    app_id: str,
    body: ProfileModeBody,
    request: Request,
    session: WriteSession,
    principal: AdminPrincipal,
    options: Options,
) -> AppProfileOut:
    """Use an app's learned or declared profile, or pin one; effective from the next call."""
    control = request.app.state.control
    return service.change_mode(session, control, principal, app_id, body, options)
