"""Page of the admin keys: names, roles, expiry, last use, and revocation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from fairserve.platform.base.roles import ROLES
from fairserve.platform.console import forms
from fairserve.platform.console.guard import AdminViewer, OwnForm, acting_for
from fairserve.platform.console.key_page import KeyPage
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.tenancy.keys.schemas import AdminKeyCreate, AdminKeyOut, AdminKeyPatch
from fairserve.platform.tenancy.keys.service import admin_keys

PAGE = ConsolePage("keys", "Keys", 81, "k", only_admin=True, within="settings")
router = APIRouter(prefix=PAGE.path)


def _keys(request: Request, viewer: AdminViewer) -> KeyPage:
    authenticator = request.app.state.authenticator
    return KeyPage(
        request,
        viewer,
        PAGE.path,
        "admin_keys",
        AdminKeyOut,
        lambda session, _: admin_keys(session, acting_for(viewer), authenticator),
        {"roles": [(role, role) for role in reversed(ROLES)]},
    )


AdminKeys = Annotated[KeyPage, Depends(_keys)]


@router.get("")
def show(keys: AdminKeys) -> Response:
    """Show all admin keys, including revoked ones."""
    return keys.show()


@router.post("")
def create(keys: AdminKeys, form: OwnForm) -> Response:
    """Create a key, and show it once."""
    return keys.create(form, AdminKeyCreate)


@router.post("/rotate")
def rotate(keys: AdminKeys, form: OwnForm) -> Response:
    """Replace all keys by a new one, and show it once. The current session ends."""
    return keys.rotate(form)


@router.post("/{key_id}")
def change(key_id: str, keys: AdminKeys, form: OwnForm) -> Response:
    """Change name, role and expiry of a key, or revoke it."""
    prefix = f"{key_id}."
    fields = forms.fields_of(form, AdminKeyPatch, prefix)
    body = forms.read(AdminKeyPatch, {**fields, "name": form.get(prefix + "name", "")}, prefix)
    return keys.change(form, key_id, body, lambda ring, patch: ring.change(key_id, patch))
