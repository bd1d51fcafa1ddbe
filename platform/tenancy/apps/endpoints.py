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
from fairserve.platform.tenancy.apps.service import Apps, all_apps_page
from fairserve.platform.tenancy.keys.schemas import KeyCreate, KeyPatch, KeyRotate
from fairserve.platform.tenancy.keys.service import KeyRing, keys_page, shown_once, shown_with_owner
from fairserve.platform.tenancy.principals import TenantPrincipal, require_admin

router = APIRouter()

Named = Annotated[TenantQuery, Query()]


def _apps_to_write(request: Request, session: WriteSession, principal: TenantPrincipal) -> Apps:
    return Apps(request.app.state.tenancy, session, principal)


def _apps_to_read(request: Request, session: ReadSession, principal: TenantPrincipal) -> Apps:
    return Apps(request.app.state.tenancy, session, principal)


WritableApps = Annotated[Apps, Depends(_apps_to_write, scope="function")]
ReadableApps = Annotated[Apps, Depends(_apps_to_read, scope="function")]


@router.post("/v1/apps", status_code=status.HTTP_201_CREATED)
def create_app(body: AppCreate, apps: WritableApps, response: Response, _: Named) -> AppCreated:
    """Register an app; the response shows its first key, once."""
    app, key = apps.create(body)
    return AppCreated(**apps.describe(app).model_dump(), **shown_with_owner(key, response))


@router.get("/v1/apps")
def list_apps(apps: ReadableApps, query: Annotated[NamedTenantPaging, Query()]) -> Page[AppOut]:
    """Return the tenant's apps, oldest first; with ``deleted`` the deleted ones."""
    return apps.page(query)


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


def _keys_to_add(app_id: str, apps: WritableApps, _: Named) -> KeyRing:
    return apps.keys_of(app_id, change=True, live=True)


AddedKeys = Annotated[KeyRing, Depends(_keys_to_add, scope="function")]


@router.post("/v1/apps/{app_id}/keys", status_code=status.HTTP_201_CREATED)
def create_key(ring: AddedKeys, response: Response, body: KeyCreate | None = None) -> NewKeyOut:
    """Create a further key, shown once."""
    return shown_once(ring.add(body or KeyCreate()), response)


@router.post("/v1/apps/{app_id}/keys/rotate", status_code=status.HTTP_201_CREATED)
def rotate_keys(ring: AddedKeys, response: Response, body: KeyRotate | None = None) -> NewKeyOut:
    """Replace all keys of the app by a new one, shown once."""
    return shown_once(ring.rotate((body or KeyRotate()).grace_s), response)


@router.get("/v1/apps/{app_id}/keys")
def list_keys(
    app_id: str, apps: ReadableApps, query: Annotated[TenantPaging, Query()]
) -> Page[KeyOut]:
    """Return an app's keys by prefix, oldest first, including revoked ones."""
    return keys_page(apps.keys_of(app_id), query, KeyOut)


@router.patch("/v1/apps/{app_id}/keys/{key_id}")
def change_key(key_id: str, body: KeyPatch, ring: AddedKeys) -> KeyOut:
    """Rename a key."""
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
