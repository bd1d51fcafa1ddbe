"""Pages of the keys of a tenant, and of an app: create, name, rotate and revoke. For operators.

The name of the module places its routes before those of a client's page, whose path matches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from fairserve.platform.console import forms
from fairserve.platform.console.formats import part
from fairserve.platform.console.guard import AdminViewer, OwnForm, acting_for, not_there
from fairserve.platform.console.key_page import KeyPage
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.identity import App
from fairserve.platform.db.names import names_of
from fairserve.platform.db.schemas import KeyOut
from fairserve.platform.tenancy.apps.service import Apps
from fairserve.platform.tenancy.keys.schemas import KeyPatch
from fairserve.platform.tenancy.keys.service import KeyRing
from fairserve.platform.tenancy.tenants.service import Tenants

router = APIRouter(prefix="/console/clients")
TENANT_KEYS = "/tenants/{tenant_id}/keys"
APP_KEYS = "/apps/{app_id}/keys"


def _of_tenant(tenant_id: str, request: Request, viewer: AdminViewer) -> KeyPage:
    with request.app.state.session_factory() as session:
        names = names_of(read_only(session), tenants=(tenant_id,))
    if tenant_id not in names:
        raise not_there(request)

    def ring(session: Session, change: bool) -> KeyRing:
        tenants = Tenants(request.app.state.tenancy, session, acting_for(viewer))
        return tenants.keys_of(tenant_id, change=change, live=change)

    path = f"{router.prefix}/tenants/{part(tenant_id)}"
    values = {"owner": names[tenant_id], "owner_path": path, "word": "tenant"}
    return KeyPage(request, viewer, f"{path}/keys", "api_keys", KeyOut, ring, values)


def _of_app(app_id: str, request: Request, viewer: AdminViewer) -> KeyPage:
    with request.app.state.session_factory() as session:
        app = read_only(session).get(App, app_id)
    if app is None:
        raise not_there(request)
    owner = replace(acting_for(viewer), tenant_id=app.tenant_id)

    def ring(session: Session, change: bool) -> KeyRing:
        apps = Apps(request.app.state.tenancy, session, owner)
        return apps.keys_of(app_id, change=change, live=change)

    path = f"{router.prefix}/apps/{part(app_id)}"
    values = {"owner": app.name, "owner_path": path, "word": "app"}
    return KeyPage(request, viewer, f"{path}/keys", "api_keys", KeyOut, ring, values)


TenantKeys = Annotated[KeyPage, Depends(_of_tenant)]
AppKeys = Annotated[KeyPage, Depends(_of_app)]


@router.get(TENANT_KEYS)
def show_of_tenant(keys: TenantKeys) -> Response:
    """Show the keys of a tenant, including revoked ones."""
    return keys.show()


@router.post(TENANT_KEYS)
def create_of_tenant(keys: TenantKeys, form: OwnForm) -> Response:
    """Create a key of a tenant, and show it once."""
    return keys.create(form)


@router.post(TENANT_KEYS + "/rotate")
def rotate_of_tenant(keys: TenantKeys, form: OwnForm) -> Response:
    """Replace the keys of a tenant by a new one, and show it once."""
    return keys.rotate(form)


@router.post(TENANT_KEYS + "/{key_id}")
def change_of_tenant(key_id: str, keys: TenantKeys, form: OwnForm) -> Response:
    """Rename or revoke a key of a tenant."""
    return _change(keys, key_id, form)


@router.get(APP_KEYS)
def show_of_app(keys: AppKeys) -> Response:
    """Show the keys of an app, including revoked ones."""
    return keys.show()


@router.post(APP_KEYS)
def create_of_app(keys: AppKeys, form: OwnForm) -> Response:
    """Create a key of an app, and show it once."""
    return keys.create(form)


@router.post(APP_KEYS + "/rotate")
def rotate_of_app(keys: AppKeys, form: OwnForm) -> Response:
    """Replace the keys of an app by a new one, and show it once."""
    return keys.rotate(form)


@router.post(APP_KEYS + "/{key_id}")
def change_of_app(key_id: str, keys: AppKeys, form: OwnForm) -> Response:
    """Rename or revoke a key of an app."""
    return _change(keys, key_id, form)


def _change(keys: KeyPage, key_id: str, form: Mapping[str, str]) -> Response:
    prefix = f"{key_id}."
    body = forms.read(KeyPatch, {"name": form.get(prefix + "name", "")}, prefix)
    return keys.change(form, key_id, body, lambda ring, patch: ring.rename(key_id, patch.name))
