"""``/v1/apps`` for tenants (and admins who name one), ``/admin/apps`` for operators.

A new key is shown only in the response to the request that created it; such responses must not be
cached.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status

from fairserve.platform.db.schemas import (
    KeyOut,
    NamedTenantPaging,
    NewKeyOut,
    Page,
    TenantPaging,
    TenantQuery,
)
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.apps.schemas import AppCreate, AppCreated, AppOut, AppPatch
from fairserve.platform.tenancy.apps.service import Apps, all_apps_page, apps_of
from fairserve.platform.tenancy.keys.schemas import KeyCreate, KeyPatch, KeyRotate
from fairserve.platform.tenancy.keys.service import shown_once
from fairserve.platform.tenancy.principals import TenantPrincipal, require_admin

router = APIRouter()

Named = Annotated[TenantQuery, Query()]


def _apps_to_write(request: Request, session: WriteSession, principal: TenantPrincipal) -> Apps:
    return apps_of(request.app.state.tenancy, session, principal)


def _apps_to_read(request: Request, session: ReadSession, principal: TenantPrincipal) -> Apps:
    return apps_of(request.app.state.tenancy, session, principal)


WritableApps = Annotated[Apps, Depends(_apps_to_write, scope="function")]
ReadableApps = Annotated[Apps, Depends(_apps_to_read, scope="function")]


@router.post("/v1/apps", status_code=status.HTTP_201_CREATED)
def create_app(body: AppCreate, apps: WritableApps, response: Response, _: Named) -> AppCreated:
    """Register an app; the response shows its first key, once."""
    app, key = apps.create(body)
    response.headers["Cache-Control"] = "no-store"
    return AppCreated(
        **apps.describe(app).model_dump(), key=KeyOut.model_validate(key.row), api_key=key.plain
    )


@router.get("/v1/apps")
def list_apps(apps: ReadableApps, query: Annotated[NamedTenantPaging, Query()]) -> Page[AppOut]:
    """Return the tenant's apps, oldest first; with ``deleted`` the deleted ones."""
    items, total = apps.page(query)
    return Page(items=items, total=total, limit=query.limit, offset=query.offset)


@router.get("/v1/apps/{app_id}")
def read_app(app_id: str, apps: ReadableApps, _: Named) -> AppOut:
    """Return one app, deleted or not."""
    return apps.describe(apps.get(app_id))


@router.patch("/v1/apps/{app_id}")
def change_app(app_id: str, body: AppPatch, apps: WritableApps, _: Named) -> AppOut:
    """Change name, profile or limits, suspend or resume; effective from the next call."""
    return apps.describe(apps.change(app_id, body))


@router.delete("/v1/apps/{app_id}")
def delete_app(app_id: str, apps: WritableApps, _: Named) -> AppOut:
    """Delete an app: its keys stop working. It can be restored until ``purge_after``."""
    return apps.describe(apps.delete(app_id))


@router.post("/v1/apps/{app_id}/restore")
def restore_app(app_id: str, apps: WritableApps, _: Named) -> AppOut:
    """Restore a deleted app with its keys."""
    return apps.describe(apps.restore(app_id))


@router.post("/v1/apps/{app_id}/keys", status_code=status.HTTP_201_CREATED)
def create_key(
    app_id: str,
    apps: WritableApps,
    response: Response,
    _: Named,
    body: KeyCreate | None = None,
) -> NewKeyOut:
    """Create a further key, shown once."""
    ring = apps.keys_of(app_id, change=True, live=True)
    return shown_once(ring.add(body or KeyCreate()), response)


@router.post("/v1/apps/{app_id}/keys/rotate", status_code=status.HTTP_201_CREATED)
def rotate_keys(
    app_id: str,
    apps: WritableApps,
    response: Response,
    _: Named,
    body: KeyRotate | None = None,
) -> NewKeyOut:
    """Replace all keys of the app by a new one, shown once."""
    ring = apps.keys_of(app_id, change=True, live=True)
    return shown_once(ring.rotate((body or KeyRotate()).grace_s), response)


@router.get("/v1/apps/{app_id}/keys")
def list_keys(
    app_id: str, apps: ReadableApps, query: Annotated[TenantPaging, Query()]
) -> Page[KeyOut]:
    """Return an app's keys by prefix, oldest first, including revoked ones."""
    rows, total = apps.keys_of(app_id).page(query.limit, query.offset)
    return Page(
        items=[KeyOut.model_validate(row) for row in rows],
        total=total,
        limit=query.limit,
        offset=query.offset,
    )


@router.patch("/v1/apps/{app_id}/keys/{key_id}")
def change_key(app_id: str, key_id: str, body: KeyPatch, apps: WritableApps, _: Named) -> KeyOut:
    """Rename a key."""
    ring = apps.keys_of(app_id, change=True, live=True)
    return KeyOut.model_validate(ring.rename(key_id, body.name))


@router.delete("/v1/apps/{app_id}/keys/{key_id}")
def revoke_key(app_id: str, key_id: str, apps: WritableApps, _: Named) -> KeyOut:
    """Revoke a key: here at once, on other replicas within 30 s."""
    return KeyOut.model_validate(apps.keys_of(app_id, change=True).revoke(key_id))


@router.get("/admin/apps", dependencies=[Depends(require_admin)])
def list_all_apps(
    request: Request, session: ReadSession, query: Annotated[NamedTenantPaging, Query()]
) -> Page[AppOut]:
    """Return the apps of one or all tenants, oldest first; with ``deleted`` the deleted ones."""
    return all_apps_page(session, query, request.app.state.settings.tenancy)
