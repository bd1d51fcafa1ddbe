"""A page of the keys of one owner: the deployment, a tenant or an app. Its forms change them.

Forms of one key have fields whose names begin with its id. A new key is shown once, in the answer to the
request that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.platform.console import forms
from fairserve.platform.console.lists import asked, part_of, place
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.keys import IssuedKey
from fairserve.platform.db.schemas import KeyOut, Paging
from fairserve.platform.db.session import read_session
from fairserve.platform.tenancy.keys.schemas import KeyCreate, KeyRotate
from fairserve.platform.tenancy.keys.service import KeyRing, keys_page

NEW = "key."
"""Beginning of the fields' names in the form of a new key."""


@dataclass(frozen=True)
class KeyPage:
    """The keys of one owner within one request."""

    request: Request
    viewer: Viewer
    path: str
    """Path of the page, and the beginning of those of its forms."""
    template: str
    shape: type[KeyOut]
    ring: Callable[[Session, bool], KeyRing]
    """Returns the owner's keys; true locks the owner for a change."""
    values: Mapping[str, Any]
    """Further values of the template."""

    def show(
        self,
        *,
        secret: str | None = None,
        given: Mapping[str, str] = forms.NOTHING,
        wrong: forms.Wrong = forms.NOTHING,
    ) -> Response:
        """Return the page, with ``secret`` as a new key."""
        with contextmanager(read_session)(self.request) as session:
            found = keys_page(self.ring(session, False), asked(self.request, Paging), self.shape)
        return page(
            self.request,
            self.viewer,
            self.template,
            status=400 if wrong else 200,
            keys=found.items,
            now=utc_now(),
            part=part_of(found),
            place=f"{self.path}?{place(self.request).partition('?')[2]}",
            own=self.path,
            secret_key=secret,
            given=given,
            wrong=wrong,
            **self.values,
        )

    def create(self, form: Mapping[str, str], shape: type[KeyCreate] = KeyCreate) -> Response:
        """Create a key from a form."""
        body = forms.read(shape, forms.fields_of(form, shape, NEW), NEW)
        if isinstance(body, dict):
            return self.show(given=form, wrong=body)
        return self._issue(form, lambda ring: ring.add(body))

    def rotate(self, form: Mapping[str, str]) -> Response:
        """Replace all keys by a new one."""
        body = forms.read(KeyRotate, forms.fields_of(form, KeyRotate))
        if isinstance(body, dict):
            return self.show(given=form, wrong=body)
        return self._issue(form, lambda ring: ring.rotate(body.grace_s))

    def change(
        self,
        form: Mapping[str, str],
        key_id: str,
        body: forms.Body | forms.Wrong,
        change: Callable[[KeyRing, forms.Body], object],
    ) -> Response:
        """Revoke a key, or change it by the body that its form has."""
        if form.get("action") == "revoke":
            wrong = self._store(form, lambda ring: ring.revoke(key_id))
        elif isinstance(body, dict):
            wrong = body
        else:
            wrong = self._store(form, lambda ring: change(ring, body), f"{key_id}.")
        if wrong:
            return self.show(given=form, wrong=wrong)
        done = "key_revoked" if form.get("action") == "revoke" else "key_changed"
        return RedirectResponse(f"{self.path}?done={done}", status_code=303)

    def _store(
        self, form: Mapping[str, str], act: Callable[[KeyRing], object], prefix: str = ""
    ) -> forms.Wrong:
        return forms.store(
            self.request, form, lambda session: act(self.ring(session, True)), prefix
        )

    def _issue(self, form: Mapping[str, str], issue: Callable[[KeyRing], IssuedKey]) -> Response:
        made = forms.make(
            self.request, form, lambda session: issue(self.ring(session, True)).plain, NEW
        )
        if isinstance(made, dict):
            return self.show(given=form, wrong=made)
        return self.show(secret=made)
