"""``/admin/keys``: management of admin keys, for admin keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status

from fairserve.platform.db.schemas import KeyOut, NewKeyOut, Page, Paging
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.keys.schemas import KeyCreate, KeyPatch, KeyRotate
from fairserve.platform.tenancy.keys.service import KeyRing, admin_keys, keys_page, shown_once
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
    ring: WritableKeys, response: Response, body: KeyCreate | None = None
) -> NewKeyOut:
    """Create a further admin key, shown once."""
    return shown_once(ring.add(body or KeyCreate()), response)


@router.post("/rotate", status_code=status.HTTP_201_CREATED)
def rotate_admin_keys(
    ring: WritableKeys, response: Response, body: KeyRotate | None = None
) -> NewKeyOut:
    """Replace all admin keys, including the one used, by a new one, shown once."""
    return shown_once(ring.rotate((body or KeyRotate()).grace_s), response)


@router.get("")
def list_admin_keys(ring: ReadableKeys, query: Annotated[Paging, Query()]) -> Page[KeyOut]:
    """Return admin keys by prefix with their last use (to the hour), oldest first."""
    return keys_page(ring, query)


@router.patch("/{key_id}")
def change_admin_key(key_id: str, body: KeyPatch, ring: WritableKeys) -> KeyOut:
    """Rename an admin key."""
    return KeyOut.model_validate(ring.rename(key_id, body.name))


@router.delete("/{key_id}")
def revoke_admin_key(key_id: str, ring: WritableKeys) -> KeyOut:
    """Revoke an admin key: here at once, on other replicas within 30 s. The last one without an expiry
    cannot be revoked (409).
    """
    return KeyOut.model_validate(ring.revoke(key_id))
