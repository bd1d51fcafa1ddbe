"""``/v1/apps/{app_id}/profile`` for tenants, ``/admin/apps/{app_id}/profile`` for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from fairserve.interactions.profile_learning import LearningOptions
from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.db.identity import App
from fairserve.platform.db.schemas import Page, TenantPaging, TenantQuery
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.apps import repository as apps
from fairserve.platform.tenancy.auth import AdminPrincipal, TenantPrincipal
from fairserve.platform.tenancy.profiles import repository, service
from fairserve.platform.tenancy.profiles.schemas import (
    AppProfileOut,
    ProfileModeBody,
    ProfileVersionOut,
)
from fairserve.platform.tenancy.settings import TenancySettings

router = APIRouter()


def _options(request: Request) -> LearningOptions | None:
    settings: TenancySettings = request.app.state.settings.tenancy
    return settings.learning_options


Options = Annotated[LearningOptions | None, Depends(_options)]


@router.get("/v1/apps/{app_id}/profile")
def read_profile(
    app_id: str,
    session: ReadSession,
    principal: TenantPrincipal,
    options: Options,
    _: Annotated[TenantQuery, Query()],
) -> AppProfileOut:
    """Which profile of an app holds and why, what was declared, and what its calls have used."""
    return service.describe(session, _app(session, principal.tenant_id, app_id), options)


@router.get("/v1/apps/{app_id}/profile/history")
def read_history(
    app_id: str,
    session: ReadSession,
    principal: TenantPrincipal,
    query: Annotated[TenantPaging, Query()],
) -> Page[ProfileVersionOut]:
    """The profiles that held, the newest first, with the reason of each change."""
    app = _app(session, principal.tenant_id, app_id)
    rows, total = repository.history(session, app.id, limit=query.limit, offset=query.offset)
    return Page(
        items=[ProfileVersionOut.model_validate(row, from_attributes=True) for row in rows],
        total=total,
        limit=query.limit,
        offset=query.offset,
    )


@router.put("/admin/apps/{app_id}/profile")
def set_profile(
    app_id: str,
    body: ProfileModeBody,
    request: Request,
    session: WriteSession,
    principal: AdminPrincipal,
    options: Options,
) -> AppProfileOut:
    """Let an app's profile be learned, believe its owner, or pin one; holds for the next call."""
    app = apps.locked(session, app_id)
    if app is None:
        raise NotFoundError("there is no such app", param="app_id")
    if app.deleted_at is not None:
        raise ConflictError("the app is deleted; restore it first", code="deleted")
    service.set_mode(session, request.app.state.control, principal, app, body, options)
    return service.describe(session, app, options)


def _app(session: ReadSession, tenant_id: str | None, app_id: str) -> App:
    assert tenant_id is not None
    app = apps.get(session, tenant_id, app_id)
    if app is None:
        raise NotFoundError("there is no such app", param="app_id")
    return app
