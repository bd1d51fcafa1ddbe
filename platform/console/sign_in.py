"""Sign-in with a key, and sign-out."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import RedirectResponse, Response

from fairserve.platform.base.client_address import client_address, client_scheme
from fairserve.platform.base.errors import FairServeError, PermissionDeniedError, UnavailableError
from fairserve.platform.console import sessions
from fairserve.platform.console.guard import COOKIE, AnyViewer, OwnForm, check_site, read_form
from fairserve.platform.console.rendering import page
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.session import WriteSession
from fairserve.platform.tenancy.auth import Principal

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/console")

HOME = "/console/overview"
SIGN_IN = "/console/sign-in"


@router.get("")
@router.get("/")
def home() -> Response:
    """Redirect to the overview."""
    return RedirectResponse(HOME, status_code=303)


@router.get("/sign-in")
def show_sign_in(request: Request, next: str = "") -> Response:
    """Show the sign-in form."""
    return _form(request, next)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Exchange an admin or tenant key for a session cookie."""
    check_site(request)
    form = await read_form(request)
    onward = form.get("next", "")
    console: ConsoleState = request.app.state.console
    factory: SessionFactory = request.app.state.session_factory
    settings: ConsoleSettings = request.app.state.settings.console
    address = client_address(request.scope, settings.proxy_networks)
    _warn_of_proxy(request, console, settings)
    try:
        async with console.sign_ins.attempt(address):
            principal = await _principal(request, form.get("key", "").strip())
    except UnavailableError as error:
        return _form(request, onward, error)
    except FairServeError as error:
        await _audit_failure(console, factory, address, error)
        return _form(request, onward, error)

    def store() -> str:
        with factory.begin() as session:
            audit.record(
                session,
                principal,
                "console.sign_in",
                principal.key_id,
                tenant_id=principal.tenant_id,
                after={"address": address},
            )
            return sessions.begin(session, principal, request.app.state.settings.tenancy, utc_now())

    token = await asyncio.to_thread(store)
    answer = RedirectResponse(_local(onward), status_code=303)
    answer.set_cookie(
        COOKIE,
        token,
        path="/console",
        httponly=True,
        samesite="strict",
        secure=client_scheme(request.scope, settings.proxy_networks) == "https",
    )
    return answer


@router.post("/sign-out")
def sign_out(viewer: AnyViewer, form: OwnForm, session: WriteSession) -> Response:
    """Delete the session."""
    sessions.end(session, viewer.session_id)
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


async def _audit_failure(
    console: ConsoleState, factory: SessionFactory, address: str, error: FairServeError
) -> None:
    """Add a failed attempt to the audit log, within the limits of entries."""
    attempts = console.sign_in_failures.count(address)
    if attempts is None:
        return

    def store() -> None:
        with factory.begin() as session:
            audit.record(
                session,
                None,
                "console.sign_in_failed",
                address or "unknown",
                actor="unknown",
                after={"reason": error.code, "attempts": attempts},
            )

    try:
        await asyncio.to_thread(store)
    except SQLAlchemyError:
        logger.warning("cannot add a failed sign-in from %s to the audit log", address)


def _form(request: Request, onward: str, error: FairServeError | None = None) -> Response:
    answer = page(
        request,
        None,
        "sign_in",
        status=200 if error is None else error.status,
        onward=onward,
        error=None if error is None else error.message,
    )
    answer.headers.update({} if error is None else error.headers)
    return answer


def _local(onward: str) -> str:
    """Return the path after the sign-in, restricted to pages of the console."""
    plain = onward.startswith("/console/") and not any(c in onward for c in "\\\r\n\t")
    return onward if plain and onward.isascii() and onward.isprintable() else HOME
