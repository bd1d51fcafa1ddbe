"""Signing in with a key, and out again."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from fairserve.platform.auth import Principal
from fairserve.platform.console import sessions
from fairserve.platform.console.guard import COOKIE, AnyViewer, OwnForm, check_site, read_form
from fairserve.platform.console.rendering import page
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.session import WriteSession
from fairserve.platform.errors import AuthenticationError, FairServeError, PermissionDeniedError

router = APIRouter(prefix="/console")

HOME = "/console/overview"
SIGN_IN = "/console/sign-in"


@router.get("")
@router.get("/")
def home() -> Response:
    """To the first page."""
    return RedirectResponse(HOME, status_code=303)


@router.get("/sign-in")
def show_sign_in(request: Request, next: str = "") -> Response:
    """The form."""
    return _form(request, next)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Take an admin or tenant key; the cookie that it is exchanged for ends with the browser."""
    check_site(request)
    form = await read_form(request)
    onward = form.get("next", "")
    console: ConsoleState = request.app.state.console
    address = request.client.host if request.client else ""
    try:
        console.sign_ins.check(address)
        principal = await _principal(request, form.get("key", "").strip())
    except AuthenticationError as error:
        console.sign_ins.wrong(address)
        return _form(request, onward, error)
    except FairServeError as error:
        return _form(request, onward, error)
    factory: SessionFactory = request.app.state.session_factory
    settings = request.app.state.settings

    def store() -> str:
        with factory.begin() as session:
            return sessions.begin(session, principal, settings, utc_now())

    token = await asyncio.to_thread(store)
    answer = RedirectResponse(_local(onward), status_code=303)
    answer.set_cookie(
        COOKIE,
        token,
        path="/console",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/sign-out")
def sign_out(viewer: AnyViewer, form: OwnForm, session: WriteSession) -> Response:
    """End the session."""
    sessions.end(session, viewer.session_id)
    answer = RedirectResponse(SIGN_IN, status_code=303)
    answer.delete_cookie(COOKIE, path="/console")
    return answer


async def _principal(request: Request, key: str) -> Principal:
    principal = await request.app.state.authenticator.authenticate(key)
    if principal.scope == "app":
        raise PermissionDeniedError("this is an app's key; allowed: an admin key or a tenant key")
    found: Principal = principal
    return found


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
    """Where to after the sign-in: pages of the console only."""
    plain = onward.startswith("/console/") and not any(c in onward for c in "\\\r\n\t")
    return onward if plain and onward.isascii() and onward.isprintable() else HOME
