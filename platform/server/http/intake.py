"""Checks before the body of a request that makes no call is read: drain, key, coding, size and memory.

Routes under ``/v1`` and ``/admin`` need a key. Where a request has a body, the key is checked here,
because FastAPI reads and parses the body before any dependency: a body without a valid key is never
read. The route's own dependency then checks the kind of the key, and its role.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.server.http.request_body import (
    RequestBody,
    close_after,
    declared_bytes,
    decoding_of,
)
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.bodies import BodyMemory, BodyReservation, draining_error
from fairserve.platform.tenancy.auth import Principal, require_scope
from fairserve.platform.tenancy.principals import authenticated

KEYLESS_BODY_BYTES = 256 * 1024
"""Largest body of a request without a key, such as the console's forms, in bytes."""
MANAGEMENT_BODY_BYTES = 1024 * 1024
"""Largest body of the management endpoints, in bytes: FastAPI parses it on the event loop."""
UPLOADS = "/v1/files"
"""Path whose body is stored as it arrives, and may be larger than any other."""
UPLOAD_FORM_BYTES = 64 * 1024
"""Largest part of an upload that is not the file, in bytes."""
UPLOAD_MEMORY_BYTES = 1024 * 1024
"""Most bytes of an upload that are in memory at a time."""
PROGRAMS = "/v1/interactions"
"""Path whose POST makes the calls of a program."""

Answer = Callable[[Request, FairServeError], Response]


def body_memory(settings: Settings) -> BodyMemory:
    """Return the memory for the bodies of all requests."""
    return BodyMemory(
        settings.server.max_body_memory_bytes,
        settings.control.max_tenant_share,
        settings.server.max_body_bytes,
    )


class Intake:
    """ASGI middleware. Cost per request: a lookup in the cache of keys; per message: a few additions."""

    def __init__(
        self, app: ASGIApp, settings: Settings, answer: Answer, memory: BodyMemory
    ) -> None:
        """``answer`` makes the response of a rejected request; ``memory`` is that of all bodies."""
        self._app = app
        self._max_body_bytes = settings.server.max_body_bytes
        self._max_file_bytes = settings.serving.file_max_bytes
        self._answer = answer
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size_bytes = declared_bytes(scope)
        body = None
        try:
            check_drain(scope)
            if size_bytes is not None:
                body = await self._body(scope, receive)
                body.expect(size_bytes)
        except FairServeError as error:
            close_after(error)
            await self._answer(Request(scope), error)(scope, receive, send)
            return
        if body is None:
            await self._app(scope, receive, send)
        else:
            await self._with_body(body, scope, receive, send)

    async def _with_body(
        self, body: RequestBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Handle a request with a body.

        FastAPI turns every error while it reads into a 400. So its answer after a rejection is dropped,
        and replaced by the right one.
        """
        answered = False

        async def send_unless_rejected(message: Message) -> None:
            nonlocal answered
            if body.rejected is None or answered:
                answered = True
                await send(message)

        try:
            await self._app(scope, body.receive, send_unless_rejected)
        except FairServeError as error:
            if error is not body.rejected:
                raise
        finally:
            body.reservation.release()
        if body.rejected is not None and not answered:
            await self._answer(Request(scope), body.rejected)(scope, receive, send)

    async def _body(self, scope: Scope, receive: Receive) -> RequestBody:
        """Return the body that arrives. Raises a FairServeError, also if a needed key is not valid."""
        principal = await _principal(scope)
        decoding = decoding_of(scope)
        max_bytes, held_bytes = self._limit(scope["path"], principal), None
        if principal is not None and scope["path"] == UPLOADS:
            max_bytes = self._max_file_bytes + UPLOAD_FORM_BYTES
            held_bytes = UPLOAD_MEMORY_BYTES
        reservation = BodyReservation(self._memory, "" if principal is None else principal.sharer)
        return RequestBody(
            receive, max_bytes, reservation, decoding=decoding, held_bytes=held_bytes
        )

    def _limit(self, path: str, principal: Principal | None) -> int:
        own_bytes = MANAGEMENT_BODY_BYTES
        if principal is None:
            own_bytes = KEYLESS_BODY_BYTES
        elif path == PROGRAMS:
            own_bytes = self._max_body_bytes
        return min(own_bytes, self._max_body_bytes)


def check_drain(scope: Scope) -> None:
    """Raise UnavailableError for requests of apps and tenants while the server drains."""
    if _top(scope) == "v1" and scope["app"].state.draining.is_set():
        error = draining_error()
        close_after(error)
        raise error


async def _principal(scope: Scope) -> Principal | None:
    """Return the owner of the request's key; None if no key is needed. Raises a FairServeError."""
    top = _top(scope)
    if top not in ("v1", "admin"):
        return None
    principal = await authenticated(scope)
    return require_scope(principal, "admin") if top == "admin" else principal


def _top(scope: Scope) -> str:
    path: str = scope["path"]
    return path.split("/", 2)[1] if path.startswith("/") else ""
