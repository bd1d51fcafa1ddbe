"""``/v1/apps`` for tenants (and admins who name one), ``/admin/apps`` for operators.

A new key is in the answer to the request that made it, and nowhere else; such answers are not to be
cached.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status

from fairserve.platform.apps import repository
from fairserve.platform.apps.schemas import (
    AppCreate,
    AppCreated,
    AppOut,
    AppPatch,
    KeyCreate,
    KeyRotate,
)
from fairserve.platform.apps.service import Apps, describe
from fairserve.platform.auth import TenantPrincipal, require_admin
from fairserve.platform.db.keys import IssuedKey
from fairserve.platform.db.schemas import (
    KeyOut,
    NewKeyOut,
    Page,
    TenantPaging,
    TenantQuery,
)
from fairserve.platform.db.session import ReadSession, WriteSession

router = APIRouter()

Named = Annotated[TenantQuery, Query()]


def _apps(request: Request, session: WriteSession, principal: TenantPrincipal) -> Apps:
    state = request.app.state
    return Apps(
        session,
        principal,
        state.authenticator,
        state.control,
        state.programs,
        state.settings.interaction_idle_timeout_s,
    )


def _apps_to_read(request: Request, session: ReadSession, principal: TenantPrincipal) -> Apps:
    return _apps(request, session, principal)


WritableApps = Annotated[Apps, Depends(_apps, scope="function")]
ReadableApps = Annotated[Apps, Depends(_apps_to_read, scope="function")]


def _shown_once(key: IssuedKey, response: Response) -> NewKeyOut:
    response.headers["Cache-Control"] = "no-store"
    return NewKeyOut(**KeyOut.model_validate(key.row).model_dump(), api_key=key.plain)


@router.post("/v1/apps", status_code=status.HTTP_201_CREATED)
def create_app(body: AppCreate, apps: WritableApps, response: Response, _: Named) -> AppCreated:
    """Register an app; the answer shows its first key, once."""
    app, key = apps.create(body)
    response.headers["Cache-Control"] = "no-store"
    return AppCreated(
        **describe(app).model_dump(), key=KeyOut.model_validate(key.row), api_key=key.plain
    )


@router.get("/v1/apps")
def list_apps(apps: ReadableApps, query: Annotated[TenantPaging, Query()]) -> Page[AppOut]:
    """The tenant's apps, oldest first."""
    found, total = apps.page(query.limit, query.offset)
    return Page(
        items=[describe(app) for app in found],
        total=total,
        limit=query.limit,
        offset=query.offset,
    )


@router.get("/v1/apps/{app_id}")
def read_app(app_id: str, apps: ReadableApps, _: Named) -> AppOut:
    """One app."""
    return describe(apps.get(app_id))


@router.patch("/v1/apps/{app_id}")
def change_app(app_id: str, body: AppPatch, apps: WritableApps, _: Named) -> AppOut:
    """Change name, profile or limits; holds for the next call."""
    return describe(apps.change(app_id, body))


@router.delete("/v1/apps/{app_id}", status_code=status.HTTP_204_NO_CONTENT)
def delete_app(app_id: str, apps: WritableApps, _: Named) -> None:
    """Delete an app and its keys."""
    apps.delete(app_id)


@router.post("/v1/apps/{app_id}/keys", status_code=status.HTTP_201_CREATED)
def create_key(
    app_id: str,
    apps: WritableApps,
    response: Response,
    _: Named,
    body: KeyCreate | None = None,
) -> NewKeyOut:
    """A further key, shown once."""
    return _shown_once(apps.add_key(app_id, (body or KeyCreate()).expires_at), response)


@router.post("/v1/apps/{app_id}/keys/rotate", status_code=status.HTTP_201_CREATED)
def rotate_keys(
    app_id: str,
    apps: WritableApps,
    response: Response,
    _: Named,
    body: KeyRotate | None = None,
) -> NewKeyOut:
    """A new key in place of all others, shown once."""
    return _shown_once(apps.rotate_keys(app_id, (body or KeyRotate()).grace_s), response)


@router.get("/v1/apps/{app_id}/keys")
def list_keys(
    app_id: str, apps: ReadableApps, query: Annotated[TenantPaging, Query()]
) -> Page[KeyOut]:
    """An app's keys by prefix, revoked ones included, oldest first."""
    rows, total = apps.list_keys(app_id, query.limit, query.offset)
    return Page(
        items=[KeyOut.model_validate(row) for row in rows],
        total=total,
        limit=query.limit,
        offset=query.offset,
    )


@router.delete("/v1/apps/{app_id}/keys/{key_id}")
def revoke_key(app_id: str, key_id: str, apps: WritableApps, _: Named) -> KeyOut:
    """Revoke a key: here at once, on other replicas within 30 s."""
    return KeyOut.model_validate(apps.revoke_key(app_id, key_id))


@router.get("/admin/apps", dependencies=[Depends(require_admin)])
def list_all_apps(session: ReadSession, query: Annotated[TenantPaging, Query()]) -> Page[AppOut]:
    """All tenants' apps, or one tenant's, oldest first."""
    found = repository.page(session, query.tenant, limit=query.limit, offset=query.offset)
    return Page(
        items=[describe(app) for app in found],
        total=repository.count(session, query.tenant),
        limit=query.limit,
        offset=query.offset,
    )
