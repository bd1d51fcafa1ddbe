"""Page of the admin keys: names, roles, expiry, last use, and revocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.platform.base.roles import ROLES
from fairserve.platform.console import forms
from fairserve.platform.console.guard import AdminViewer, OwnForm, acting_for
from fairserve.platform.console.lists import asked, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.keys import IssuedKey
from fairserve.platform.db.schemas import Paging
from fairserve.platform.db.session import read_session
from fairserve.platform.tenancy.keys.schemas import AdminKeyCreate, AdminKeyOut, AdminKeyPatch
from fairserve.platform.tenancy.keys.service import KeyRing, admin_keys, keys_page

PAGE = ConsolePage("keys", "Keys", 8, only_admin=True)
router = APIRouter(prefix=PAGE.path)


@router.get("")
def show(request: Request, viewer: AdminViewer) -> Response:
    """Show all admin keys, including revoked ones."""
    return _page(request, viewer)


@router.post("")
def create(request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Create a key, and show it once."""
    values = {
        "name": forms.given(form.get("name")),
        "role": forms.given(form.get("role")),
        "expires_at": forms.given(form.get("expires_at")),
    }
    body = forms.read(AdminKeyCreate, {name: value for name, value in values.items() if value})
    if isinstance(body, dict):
        return _page(request, viewer, given=form, wrong=body)
    return _issue(request, viewer, form, lambda ring: ring.add(body))


@router.post("/rotate")
def rotate(request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Replace all keys by a new one, and show it once. The current session ends."""
    return _issue(request, viewer, form, lambda ring: ring.rotate(0.0))


@router.post("/{key_id}")
def change(key_id: str, request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Change name, role and expiry of a key, or revoke it."""
    if form.get("action") == "revoke":
        wrong, done = _store(request, viewer, lambda ring: ring.revoke(key_id)), "key_revoked"
    else:
        values: dict[str, str | None] = {
            name: form[name].strip() for name in ("name", "role") if name in form
        }
        if "expires_at" in form:
            values["expires_at"] = forms.given(form["expires_at"])
        body = forms.read(AdminKeyPatch, values)
        if isinstance(body, dict):
            text = " ".join(f"{name}: {problem}" for name, problem in body.items())
            return _page(request, viewer, wrong={"": text})
        wrong = _store(request, viewer, lambda ring: ring.change(key_id, body))
        done = "key_changed"
    if wrong:
        return _page(request, viewer, wrong=wrong)
    return RedirectResponse(f"{PAGE.path}?done={done}", status_code=303)


def _issue(
    request: Request, viewer: Viewer, form: Mapping[str, str], make: Callable[[KeyRing], IssuedKey]
) -> Response:
    made: list[IssuedKey] = []
    wrong = _store(request, viewer, lambda ring: made.append(make(ring)))
    if wrong:
        return _page(request, viewer, given=form, wrong=wrong)
    return _page(request, viewer, plain=made[0].plain)


def _store(request: Request, viewer: Viewer, act: Callable[[KeyRing], object]) -> forms.Wrong:
    def change(session: Session) -> None:
        act(admin_keys(session, acting_for(viewer), request.app.state.authenticator))

    return forms.store(request, change)


def _page(
    request: Request,
    viewer: Viewer,
    *,
    plain: str | None = None,
    given: Mapping[str, str] | None = None,
    wrong: forms.Wrong | None = None,
) -> Response:
    with contextmanager(read_session)(request) as session:
        ring = admin_keys(session, acting_for(viewer), request.app.state.authenticator)
        found = keys_page(ring, asked(request, Paging), AdminKeyOut)
    return page(
        request,
        viewer,
        "admin_keys",
        status=400 if wrong else 200,
        keys=found.items,
        roles=ROLES,
        now=utc_now(),
        part=part_of(found),
        place=place(request),
        plain=plain,
        given=given or {},
        wrong=wrong or {},
    )
