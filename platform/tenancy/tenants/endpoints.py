"""``/admin/tenants``, for admin keys. A deleted tenant can be restored until its retention is over."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status

from fairserve.platform.db.schemas import KeyOut, NamedPaging, NewKeyOut, Page, Paging
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.keys.schemas import KeyCreate, KeyPatch, KeyRotate
from fairserve.platform.tenancy.keys.service import KeyRing, keys_page, shown_once, shown_with_owner
from fairserve.platform.tenancy.principals import AdminPrincipal
from fairserve.platform.tenancy.tenants.schemas import (
    TenantCreate,
    TenantCreated,
    TenantOut,
    TenantPatch,
)
from fairserve.platform.tenancy.tenants.service import Tenants

router = APIRouter(prefix="/admin/tenants")


def _tenants_to_write(
    request: Request, session: WriteSession, principal: AdminPrincipal
) -> Tenants:
    return Tenants(request.app.state.tenancy, session, principal)


def _tenants_to_read(request: Request, session: ReadSession, principal: AdminPrincipal) -> Tenants:
    return Tenants(request.app.state.tenancy, session, principal)


WritableTenants = Annotated[Tenants, Depends(_tenants_to_write, scope="function")]
ReadableTenants = Annotated[Tenants, Depends(_tenants_to_read, scope="function")]


@router.post("", status_code=status.HTTP_201_CREATED)
def create_tenant(
    body: TenantCreate, tenants: WritableTenants, response: Response
) -> TenantCreated:
    """Create a tenant; the response shows its key, once."""
    tenant, key = tenants.create(body)
    return TenantCreated(**tenants.describe(tenant).model_dump(), **shown_with_owner(key, response))


@router.get("")
def list_tenants(
    tenants: ReadableTenants, query: Annotated[NamedPaging, Query()]
) -> Page[TenantOut]:
    """Return the tenants, oldest first, including suspended ones; with ``deleted`` the deleted."""
    return tenants.page(query)


@router.get("/{tenant_id}")
def read_tenant(tenant_id: str, tenants: ReadableTenants) -> TenantOut:
    """Return one tenant, deleted or not."""
    return tenants.describe(tenants.get(tenant_id))


@router.patch("/{tenant_id}")
def change_tenant(tenant_id: str, body: TenantPatch, tenants: WritableTenants) -> TenantOut:
    """Change name, weight, levels or limits, suspend or resume. Keys of a suspended tenant stop working
    here at once, on other replicas within 30 s.
    """
    return tenants.describe(tenants.change(tenant_id, body))


@router.delete("/{tenant_id}")
def delete_tenant(tenant_id: str, tenants: WritableTenants) -> TenantOut:
    """Delete a tenant: its keys stop working. It can be restored until ``purge_after``."""
    return tenants.describe(tenants.delete(tenant_id))


@router.post("/{tenant_id}/restore")
def restore_tenant(tenant_id: str, tenants: WritableTenants) -> TenantOut:
    """Restore a deleted tenant with its apps and keys."""
    return tenants.describe(tenants.restore(tenant_id))


def _keys_to_add(tenant_id: str, tenants: WritableTenants) -> KeyRing:
    return tenants.keys_of(tenant_id, change=True, live=True)


AddedKeys = Annotated[KeyRing, Depends(_keys_to_add, scope="function")]


@router.post("/{tenant_id}/keys", status_code=status.HTTP_201_CREATED)
def create_tenant_key(
    ring: AddedKeys, response: Response, body: KeyCreate | None = None
) -> NewKeyOut:
    """Create a further tenant key, shown once."""
    return shown_once(ring.add(body or KeyCreate()), response)


@router.post("/{tenant_id}/keys/rotate", status_code=status.HTTP_201_CREATED)
def rotate_tenant_keys(
    ring: AddedKeys, response: Response, body: KeyRotate | None = None
) -> NewKeyOut:
    """Replace all keys of the tenant by a new one, shown once; keys of its apps are unchanged."""
    return shown_once(ring.rotate((body or KeyRotate()).grace_s), response)


@router.get("/{tenant_id}/keys")
def list_tenant_keys(
    tenant_id: str, tenants: ReadableTenants, query: Annotated[Paging, Query()]
) -> Page[KeyOut]:
    """Return a tenant's own keys by prefix, oldest first, including revoked ones."""
    return keys_page(tenants.keys_of(tenant_id), query, KeyOut)


@router.patch("/{tenant_id}/keys/{key_id}")
def change_tenant_key(key_id: str, body: KeyPatch, ring: AddedKeys) -> KeyOut:
    """Rename a key."""
    return KeyOut.model_validate(ring.rename(key_id, body.name))


@router.delete("/{tenant_id}/keys/{key_id}")
def revoke_tenant_key(tenant_id: str, key_id: str, tenants: WritableTenants) -> KeyOut:
    """Revoke a key: here at once, on other replicas within 30 s."""
    return KeyOut.model_validate(tenants.keys_of(tenant_id, change=True).revoke(key_id))
