"""Who may open a page, and which forms are taken: dependencies of the console's endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hmac import compare_digest
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from fairserve.platform.base.errors import (
    AuthenticationError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
)
from fairserve.platform.console import sessions
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.base import utc_now
from fairserve.platform.tenancy.auth import Principal

COOKIE = "fairserve_console"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"
MAX_FIELDS = 300

Form = Mapping[str, str]
"""A form's fields; of one that is given several times, the last."""


class SignInNeededError(AuthenticationError):
    """Nobody is signed in, or not any more: the answer leads to the sign-in."""


def _viewer(request: Request) -> Viewer:
    state = request.app.state
    token = request.cookies.get(COOKIE, "")
    viewer = sessions.find(state.session_factory, token, state.settings.tenancy, utc_now())
    if viewer is None:
        raise SignInNeededError("sign in to see this page")
    request.state.viewer = viewer
    return viewer


AnyViewer = Annotated[Viewer, Depends(_viewer)]
"""An operator or a tenant."""


def _admin(viewer: AnyViewer, request: Request) -> Viewer:
    if not viewer.is_admin:
        raise not_there(request)
    return viewer


AdminViewer = Annotated[Viewer, Depends(_admin)]
"""An operator; to tenants such pages do not exist."""


def not_there(request: Request) -> NotFoundError:
    """What is answered where something does not exist, or is not the viewer's: the same."""
    return NotFoundError(f"there is no {request.url.path}")


async def _form(request: Request) -> Form:
    """The fields of a form that one of our own pages sent."""
    check_site(request)
    token = request.cookies.get(COOKIE, "")
    state = request.app.state
    viewer = await asyncio.to_thread(
        sessions.find, state.session_factory, token, state.settings.tenancy, utc_now()
    )
    if viewer is None:
        raise SignInNeededError("sign in first; nothing was changed")
    form = await read_form(request)
    given = request.headers.get(CSRF_HEADER) or form.get(CSRF_FIELD, "")
    if not compare_digest(given.encode(), viewer.csrf.encode()):
        raise PermissionDeniedError(
            "the form is not from this sign-in; go back, load the page anew and try again",
            code="csrf",
        )
    return form


OwnForm = Annotated[Form, Depends(_form)]


def check_site(request: Request) -> None:
    """Raises PermissionDeniedError for what another site's page sends."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise PermissionDeniedError("this form is on another site", code="csrf")


async def read_form(request: Request) -> Form:
    """The fields of an urlencoded body. Raises InvalidRequestError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidRequestError("the body is not a form; allowed: x-www-form-urlencoded")
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidRequestError(
            f"the form cannot be read; it has {MAX_FIELDS} fields at most"
        ) from error
    return dict(fields)


def scoped(viewer: Viewer, tenant: str | None, request: Request) -> str | None:
    """The tenant that a page is about: a tenant's own, or the one that an operator names, if any.

    Raises NotFoundError where a tenant names another.
    """
    if viewer.is_admin:
        return tenant or None
    if tenant and tenant != viewer.tenant_id:
        raise not_there(request)
    return viewer.tenant_id


def acting_for(viewer: Viewer) -> Principal:
    """In whose name changes are stored and audited."""
    return viewer.principal
