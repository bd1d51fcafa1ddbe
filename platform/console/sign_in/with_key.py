"""Sign-in with a key, and sign-out. People sign in through :mod:`fairserve.platform.console.oidc`."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request
from sqlalchemy.exc import OperationalError
from starlette.responses import RedirectResponse, Response

from fairserve.platform.base.client_address import client_address
from fairserve.platform.base.errors import FairServeError, PermissionDeniedError, UnavailableError
from fairserve.platform.console import sessions
from fairserve.platform.console.guard import COOKIE, AnyViewer, OwnForm, check_site, read_form
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.console.sign_in.steps import (
    HOME,
    SIGN_IN,
    audit_failure,
    begin_session,
    local,
    sign_in_page,
)
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.db import audit
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.tenancy.auth import Principal

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/console")


@router.get("")
@router.get("/")
def home() -> Response:
    """Redirect to the overview."""
    return RedirectResponse(HOME, status_code=303)


@router.get("/sign-in")
def show_sign_in(request: Request, next: str = "") -> Response:
    """Show the sign-in form."""
    return sign_in_page(request, next)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Exchange an admin or tenant key for a session cookie."""
    check_site(request)
    form = await read_form(request)
    onward = form.get("next", "")
    console: ConsoleState = request.app.state.console
    settings: ConsoleSettings = request.app.state.settings.console
    address = client_address(request.scope, settings.proxy_networks)
    _warn_of_proxy(request, console, settings)
    try:
        if settings.console != "on":
            raise PermissionDeniedError("sign-in with keys is off here (console is oidc)")
        async with console.sign_ins.attempt(address):
            principal = await _principal(request, form.get("key", "").strip())
        answer = RedirectResponse(local(onward), status_code=303)
        await begin_session(request, principal, address, answer)
    except UnavailableError as error:
        return sign_in_page(request, onward, error)
    except FairServeError as error:
        await audit_failure(request, address, error, "key")
        return sign_in_page(request, onward, error)
    return answer


@router.post("/sign-out")
def sign_out(request: Request, viewer: AnyViewer, form: OwnForm) -> Response:
    """Delete the session. While the database does not answer, it ends on this server only."""
    console: ConsoleState = request.app.state.console
    factory: SessionFactory = request.app.state.session_factory
    settings: ConsoleSettings = request.app.state.settings.console
    console.sessions.end(viewer)
    try:
        with factory.begin() as session:
            sessions.end(session, viewer.session_id)
            audit.record(
                session,
                viewer.principal,
                "console.sign_out",
                viewer.principal.key_id or viewer.principal.actor,
                tenant_id=viewer.tenant_id,
                after={"address": client_address(request.scope, settings.proxy_networks)},
            )
    except OperationalError:
        logger.warning("a sign-out is not stored: the database does not answer")
    answer = RedirectResponse(SIGN_IN, status_code=303)
    answer.delete_cookie(COOKIE, path="/console")
    return answer


async def _principal(request: Request, key: str) -> Principal:
    principal = await request.app.state.authenticator.authenticate(key, audited=False)
    if principal.scope == "app":
        raise PermissionDeniedError("this is an app key; sign in with an admin or tenant key")
    found: Principal = principal
    return found


def _warn_of_proxy(request: Request, console: ConsoleState, settings: ConsoleSettings) -> None:
    """Log once that headers of an untrusted proxy are ignored."""
    ignored = not settings.trusted_proxies and "x-forwarded-for" in request.headers
    if ignored and not console.warned_of_proxy:
        console.warned_of_proxy = True
        logger.warning(
            "X-Forwarded-For of a sign-in was ignored because trusted_proxies is empty."
            " If a proxy precedes the server, add it to trusted_proxies"
        )
