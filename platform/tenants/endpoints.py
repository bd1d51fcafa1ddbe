"""``/admin/tenants``, for admin keys. Deleting a tenant suspends it: its ledger must stay."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status

from fairserve.platform.auth import AdminPrincipal
from fairserve.platform.db.schemas import KeyOut, NewKeyOut, Page, Paging
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenants.schemas import (
    TenantCreate,
    TenantCreated,
    TenantOut,
    TenantPatch,
)
from fairserve.platform.tenants.service import Tenants

router = APIRouter(prefix="/admin/tenants")


def _tenants(request: Request, session: WriteSession, principal: AdminPrincipal) -> Tenants:
    state = request.app.state
    return Tenants(session, principal, state.authenticator, state.programs)


def _tenants_to_read(request: Request, session: ReadSession, principal: AdminPrincipal) -> Tenants:
    state = request.app.state
    return Tenants(session, principal, state.authenticator, state.programs)


WritableTenants = Annotated[Tenants, Depends(_tenants, scope="function")]
ReadableTenants = Annotated[Tenants, Depends(_tenants_to_read, scope="function")]


@router.post("", status_code=status.HTTP_201_CREATED)
def create_tenant(
    body: TenantCreate, tenants: WritableTenants, response: Response
) -> TenantCreated:
    """A new tenant; the answer shows its key, once."""
    tenant, key = tenants.create(body)
    response.headers["Cache-Control"] = "no-store"
    return TenantCreated(
        **TenantOut.model_validate(tenant).model_dump(),
        key=KeyOut.model_validate(key.row),
        api_key=key.plain,
    )


@router.get("")
def list_tenants(tenants: ReadableTenants, query: Annotated[Paging, Query()]) -> Page[TenantOut]:
    """All tenants, suspended ones included, oldest first."""
    rows, total = tenants.page(query.limit, query.offset)
    return Page(
        items=[TenantOut.model_validate(row) for row in rows],
        total=total,
        limit=query.limit,
        offset=query.offset,
    )


@router.get("/{tenant_id}")
def read_tenant(tenant_id: str, tenants: ReadableTenants) -> TenantOut:
    """One tenant."""
    return TenantOut.model_validate(tenants.get(tenant_id))


@router.patch("/{tenant_id}")
def change_tenant(tenant_id: str, body: TenantPatch, tenants: WritableTenants) -> TenantOut:
    """Rename, suspend, or take back."""
    return TenantOut.model_validate(tenants.change(tenant_id, body))


@router.delete("/{tenant_id}")
def suspend_tenant(tenant_id: str, tenants: WritableTenants) -> TenantOut:
    """Suspend: its keys stop working here at once, on other replicas within 30 s."""
    return TenantOut.model_validate(tenants.change(tenant_id, TenantPatch(suspended=True)))


@router.post("/{tenant_id}/keys/rotate", status_code=status.HTTP_201_CREATED)
def rotate_tenant_keys(tenant_id: str, tenants: WritableTenants, response: Response) -> NewKeyOut:
    """A new tenant key in place of the old, shown once."""
    key = tenants.rotate_keys(tenant_id)
    response.headers["Cache-Control"] = "no-store"
    return NewKeyOut(**KeyOut.model_validate(key.row).model_dump(), api_key=key.plain)
