"""Common steps of all kinds of sign-in: the page, the session with its cookie, and the audit log."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from fastapi import Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from fairserve.platform.base.client_address import client_scheme
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.console import sessions
from fairserve.platform.console.guard import COOKIE
from fairserve.platform.console.person import Person
from fairserve.platform.console.rendering import page
from fairserve.platform.console.settings import ConsoleSettings
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.failed_keys import FailureEntries

logger = logging.getLogger(__name__)

HOME = "/console/overview"
SIGN_IN = "/console/sign-in"
MAX_ONWARD_CHARS = 2000

Kind = Literal["key", "oidc"]


def sign_in_page(request: Request, onward: str, error: FairServeError | None = None) -> Response:
    """Return the page that offers all kinds of sign-in, with the error of a failed one."""
    settings: ConsoleSettings = request.app.state.settings.console
    answer = page(
        request,
        None,
        "sign_in",
        status=200 if error is None else error.status,
        onward=onward,
        error=None if error is None else error.message,
        with_key=settings.console == "on",
        provider=settings.oidc_title if settings.oidc_issuer else None,
    )
    answer.headers.update({} if error is None else error.headers)
    return answer


async def begin_session(
    request: Request, owner: Principal | Person, address: str, answer: Response
) -> None:
    """Store a session with its entry in the audit log, and set its cookie on the answer.

    Raises RateLimitedError if the key or the person signs in too often.
    """
    state = request.app.state
    console: ConsoleState = state.console
    factory: SessionFactory = state.session_factory
    principal = owner.principal if isinstance(owner, Person) else owner
    target = principal.key_id or principal.actor
    await console.sign_ins.admit(target)
    kind: Kind = "oidc" if isinstance(owner, Person) else "key"
    after = {"address": address, "by": kind}
    if principal.scope == "admin":
        after["role"] = principal.role

    def store() -> str:
        with factory.begin() as session:
            audit.record(
                session,
                principal,
                "console.sign_in",
                target,
                tenant_id=principal.tenant_id,
                after=after,
            )
            return sessions.begin(session, owner, state.settings.tenancy, utc_now())

    answer.set_cookie(
        COOKIE,
        await asyncio.to_thread(store),
        path="/console",
        httponly=True,
        samesite="strict",
        secure=is_secure(request),
    )


async def audit_failure(
    request: Request,
    address: str,
    error: FairServeError,
    kind: Kind,
    *,
    actor: str = "unknown",
) -> None:
    """Add a failed attempt to the audit log, within the limits of entries.

    The limits are by address, or by person where the provider names one as ``actor``.
    """
    state = request.app.state
    console: ConsoleState = state.console
    factory: SessionFactory = state.session_factory
    known = actor != "unknown"
    entries: FailureEntries = console.people_without_role if known else console.sign_in_failures
    attempts = entries.count(actor if known else address)
    if attempts is None:
        return

    def store() -> None:
        with factory.begin() as session:
            audit.record(
                session,
                None,
                "console.sign_in_failed",
                address or "unknown",
                actor=actor,
                after={"reason": error.code, "by": kind, "attempts": attempts},
            )

    try:
        await asyncio.to_thread(store)
    except SQLAlchemyError:
        logger.warning("cannot add a failed sign-in from %s to the audit log", address)


def is_secure(request: Request) -> bool:
    """Return whether the browser uses https, so that it keeps cookies from plain http."""
    settings: ConsoleSettings = request.app.state.settings.console
    return client_scheme(request.scope, settings.proxy_networks) == "https"


def local(onward: str) -> str:
    """Return the path after the sign-in, restricted to pages of the console."""
    plain = onward.startswith("/console/") and not any(c in onward for c in "\\\r\n\t")
    plain = plain and len(onward) <= MAX_ONWARD_CHARS
    return onward if plain and onward.isascii() and onward.isprintable() else HOME
