"""FastAPI dependencies of the console: access to pages and checks of forms."""

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
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.status_view import status_view
from fairserve.platform.db.base import utc_now
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.principals import route_of
from fairserve.platform.tenancy.roles import needed_role, require_role

COOKIE = "fairserve_console"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"
MAX_FIELDS = 300

Form = Mapping[str, str]
"""Fields of a form; the last value of a repeated field."""


class SignInNeededError(AuthenticationError):
    """There is no valid session: the response redirects to the sign-in page."""


def signed_in(request: Request) -> Viewer | None:
    """Return the viewer of the request's cookie. A person of a former provider is nobody.

    The database is read once in a request. Raises UnavailableError if only the database knows.
    """
    if not hasattr(request.state, "signed_in"):
        request.state.signed_in = _read_viewer(request)
    found: Viewer | None = request.state.signed_in
    return found


def _read_viewer(request: Request) -> Viewer | None:
    state = request.app.state
    token = request.cookies.get(COOKIE, "")
    console: ConsoleState = state.console
    viewer = console.sessions.find(state.session_factory, token, state.settings.tenancy, utc_now())
    if viewer is None or viewer.person is None:
        return viewer
    return viewer if viewer.person.issuer == state.settings.console.oidc_issuer else None


def _viewer(request: Request) -> Viewer:
    viewer = signed_in(request)
    if viewer is None:
        raise SignInNeededError("sign in to open this page")
    request.state.status = status_view(request.app.state, viewer)
    request.state.viewer = viewer
    if viewer.is_admin:
        require_role(viewer.principal.role, needed_role(route_of(request)))
    return viewer


AnyViewer = Annotated[Viewer, Depends(_viewer)]
"""A tenant, or an operator with the role of the page."""


def _admin(viewer: AnyViewer, request: Request) -> Viewer:
    if not viewer.is_admin:
        raise not_there(request)
    return viewer


AdminViewer = Annotated[Viewer, Depends(_admin)]
"""An operator with the role of the page; tenants get 404 for such pages."""


def not_there(request: Request) -> NotFoundError:
    """Return the common error for objects that do not exist or do not belong to the viewer."""
    return NotFoundError(f"there is no page {request.url.path}")


async def _form(request: Request) -> Form:
    """Return the fields of a form sent by a page of the console."""
    check_site(request)
    viewer = await asyncio.to_thread(signed_in, request)
    if viewer is None:
        raise SignInNeededError("nothing was changed; sign in first")
    form = await read_form(request)
    given = request.headers.get(CSRF_HEADER) or form.get(CSRF_FIELD, "")
    if not compare_digest(given.encode(), viewer.csrf.encode()):
        raise PermissionDeniedError(
            "the form belongs to another session; reload the page and retry",
            code="csrf",
        )
    return form


OwnForm = Annotated[Form, Depends(_form)]


def check_site(request: Request) -> None:
    """Raise PermissionDeniedError for a request from another site's page."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise PermissionDeniedError("the form was sent by another site", code="csrf")


async def read_form(request: Request) -> Form:
    """Return the fields of an urlencoded body. Raises InvalidRequestError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidRequestError("the body must be a form in x-www-form-urlencoded format")
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidRequestError(
            f"the form cannot be parsed; it must have at most {MAX_FIELDS} fields"
        ) from error
    return dict(fields)


def scoped(viewer: Viewer, tenant: str | None, request: Request) -> str | None:
    """Return the tenant of a page: the tenant itself, or the one that an operator names, if any.

    Raises NotFoundError if a tenant names another tenant.
    """
    if viewer.is_admin:
        return tenant or None
    if tenant and tenant != viewer.tenant_id:
        raise not_there(request)
    return viewer.tenant_id


def acting_for(viewer: Viewer) -> Principal:
    """Return the principal for changes and their audit entries."""
    return viewer.principal
