"""Access to pages and checks of forms: dependencies of the console's endpoints."""

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
"""Fields of a form; of a repeated one the last value."""


class SignInNeededError(AuthenticationError):
    """There is no sign-in, or it has ended: the answer redirects to the sign-in page."""


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
"""An operator; for tenants such pages do not exist."""


def not_there(request: Request) -> NotFoundError:
    """Return the same error for what does not exist and for what is not the viewer's."""
    return NotFoundError(f"there is no {request.url.path}")


async def _form(request: Request) -> Form:
    """Return the fields of a form that one of our own pages sent."""
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
            "the form is from another sign-in; reload the page and try again",
            code="csrf",
        )
    return form


OwnForm = Annotated[Form, Depends(_form)]


def check_site(request: Request) -> None:
    """Raise PermissionDeniedError for a request from another site's page."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise PermissionDeniedError("this form is on another site", code="csrf")


async def read_form(request: Request) -> Form:
    """Return the fields of an urlencoded body. Raises InvalidRequestError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidRequestError("the body is not a form; allowed: x-www-form-urlencoded")
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidRequestError(
            f"the form cannot be parsed; it may have {MAX_FIELDS} fields at most"
        ) from error
    return dict(fields)


def scoped(viewer: Viewer, tenant: str | None, request: Request) -> str | None:
    """Return the tenant of a page: a tenant's own, or the one that an operator names, if any.

    Raises NotFoundError if a tenant names another one.
    """
    if viewer.is_admin:
        return tenant or None
    if tenant and tenant != viewer.tenant_id:
        raise not_there(request)
    return viewer.tenant_id


def acting_for(viewer: Viewer) -> Principal:
    """Return the principal under which changes are stored and audited."""
    return viewer.principal
