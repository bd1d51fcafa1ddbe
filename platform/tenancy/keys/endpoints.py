"""``/admin/keys``: management of admin keys, for admin keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status

from fairserve.platform.db.schemas import Page, Paging
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.keys.schemas import (
    AdminKeyCreate,
    AdminKeyOut,
    AdminKeyPatch,
    KeyRotate,
    NewAdminKeyOut,
)
from fairserve.platform.tenancy.keys.service import (
    KeyRing,
    admin_key_shown_once,
    admin_keys,
    keys_page,
)
from fairserve.platform.tenancy.principals import AdminPrincipal

router = APIRouter(prefix="/admin/keys")


def _to_write(request: Request, session: WriteSession, principal: AdminPrincipal) -> KeyRing:
    return admin_keys(session, principal, request.app.state.authenticator)


def _to_read(request: Request, session: ReadSession, principal: AdminPrincipal) -> KeyRing:
    return admin_keys(session, principal, request.app.state.authenticator)


WritableKeys = Annotated[KeyRing, Depends(_to_write, scope="function")]
ReadableKeys = Annotated[KeyRing, Depends(_to_read, scope="function")]


@router.post("", status_code=status.HTTP_201_CREATED)
def create_admin_key(
    ring: WritableKeys, response: Response, body: AdminKeyCreate | None = None
) -> NewAdminKeyOut:
    """Create a further admin key with a role (viewer, operator or admin), shown once."""
    return admin_key_shown_once(ring.add(body or AdminKeyCreate()), response)


@router.post("/rotate", status_code=status.HTTP_201_CREATED)
def rotate_admin_keys(
    ring: WritableKeys, response: Response, body: KeyRotate | None = None
) -> NewAdminKeyOut:
    """Replace all admin keys of all roles, including the one used, by a new one, shown once."""
    return admin_key_shown_once(ring.rotate((body or KeyRotate()).grace_s), response)


@router.get("")
def list_admin_keys(ring: ReadableKeys, query: Annotated[Paging, Query()]) -> Page[AdminKeyOut]:
    """Return admin keys by prefix with their last use (to the hour), oldest first."""
    return keys_page(ring, query, AdminKeyOut)


@router.patch("/{key_id}")
def change_admin_key(key_id: str, body: AdminKeyPatch, ring: WritableKeys) -> AdminKeyOut:
    """Change name, role or expiry of an admin key: here at once, on other replicas within 30 s. The last
    one of role admin without an expiry keeps both (409).
    """
    return AdminKeyOut.model_validate(ring.change(key_id, body))


@router.delete("/{key_id}")
def revoke_admin_key(key_id: str, ring: WritableKeys) -> AdminKeyOut:
    """Revoke an admin key: here at once, on other replicas within 30 s. The last one of role admin
    without an expiry cannot be revoked (409).
    """
    return AdminKeyOut.model_validate(ring.revoke(key_id))
