"""Checks before a body is read: drain, key, coding, size limit and memory.

Routes under ``/v1`` and ``/admin`` need a key. Where a request has a body, the key is checked here,
because FastAPI reads and parses the body before any dependency: a body without a valid key is never
read. The route's own dependency then checks the kind of the key, and its role.

A compressed body is decompressed here, for all routes, and its limit is that of the plain body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairserve.engine.wire.tasks import TASK_OF_PATH
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.server.http.decoding import Decoding, coding_of
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.bodies import (
    RESERVATION,
    BodyMemory,
    BodyReservation,
    check_body_size,
    draining_error,
)
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.messages.errors import PATHS as MESSAGE_PATHS
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
CALL_PATHS = frozenset({*TASK_OF_PATH, "/v1/responses", *MESSAGE_PATHS})
"""Paths whose bodies are prompts."""

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
        request = Request(scope)
        size_bytes = _body_bytes(scope)
        body = None
        try:
            _check_drain(request)
            if size_bytes is not None:
                principal = await _principal(request)
                decoding = _decoding(request)
                reservation = self._reserve(principal)
                max_bytes, held_bytes = self._limit(request, principal), None
                if principal is not None and request.scope["path"] == UPLOADS:
                    max_bytes = self._max_file_bytes + UPLOAD_FORM_BYTES
                    held_bytes = UPLOAD_MEMORY_BYTES
                body = _Body(receive, send, max_bytes, reservation, held_bytes, decoding)
                body.expect(size_bytes)
        except FairServeError as error:
            await self._reject(request, error, receive, send)
            return
        if body is None:
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})[RESERVATION] = body.reservation
        try:
            await self._app(scope, body.receive, body.send)
        except FairServeError as error:
            if error is not body.rejected:
                raise
        finally:
            if not body.reservation.held_by_call:
                body.reservation.release()
        if body.rejected is not None and not body.answered:
            await self._reject(request, body.rejected, receive, send)

    async def _reject(
        self, request: Request, error: FairServeError, receive: Receive, send: Send
    ) -> None:
        """Answer, and close the connection without reading the rest of the body."""
        response = self._answer(request, error)
        response.headers["connection"] = "close"
        await response(request.scope, receive, send)

    def _reserve(self, principal: Principal | None) -> BodyReservation:
        owner = "" if principal is None else principal.sharer
        return BodyReservation(self._memory, owner)

    def _limit(self, request: Request, principal: Principal | None) -> int:
        path = request.scope["path"]
        if principal is None:
            own_bytes = KEYLESS_BODY_BYTES
        elif path in CALL_PATHS:
            decisions: DecisionService = request.app.state.decisions
            limit = decisions.max_body_bytes(principal)
            own_bytes = self._max_body_bytes if limit is None else limit
        elif path == "/v1/interactions":  # programs
            own_bytes = self._max_body_bytes
        else:
            own_bytes = MANAGEMENT_BODY_BYTES
        return min(own_bytes, self._max_body_bytes)


class _Body:
    """The body of one request: counted, reserved, and rejected beyond its limit.

    FastAPI turns every error while it reads into a 400. So its answer after a rejection is dropped, and
    the caller sends the right one.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        max_bytes: int,
        reservation: BodyReservation,
        held_bytes: int | None = None,
        decoding: Decoding | None = None,
    ) -> None:
        """``held_bytes`` of the body are in memory at most; None: all of it."""
        self._receive, self._send = receive, send
        self._max_bytes = max_bytes
        self._held_bytes = max_bytes if held_bytes is None else held_bytes
        self._received_bytes = 0
        self._decoding = decoding
        self._pieces: Iterator[bytes] = iter(())
        self._coded_bytes = 0
        self._last = False
        """True if the last part of a compressed body has arrived."""
        self.reservation = reservation
        self.rejected: FairServeError | None = None
        self.answered = False

    def expect(self, size_bytes: int) -> None:
        """Reserve a size that the client declares, or that has arrived. Raises a FairServeError."""
        what = "body" if self._decoding is None else "decompressed body"
        check_body_size(size_bytes, self._max_bytes, what)
        held_bytes = min(size_bytes, self._held_bytes)
        if self._decoding is not None:  # its window fills with the output
            held_bytes += min(size_bytes, self._decoding.memory_bytes)
        self.reservation.grow(held_bytes)

    async def receive(self) -> Message:
        """Return the next part. Raises the error that rejects the request."""
        try:
            return await (
                self._plain() if self._decoding is None else self._decoded(self._decoding)
            )
        except FairServeError as error:
            self.rejected = error
            raise

    async def _plain(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            self.expect(self._received_bytes)
        return message

    async def _decoded(self, decoding: Decoding) -> Message:
        """Return the next piece of a compressed body, as one of a plain body."""
        while True:
            piece = next(self._pieces, b"")
            if piece:
                self._received_bytes += len(piece)
                self.expect(self._received_bytes)
                await asyncio.sleep(0)  # the pieces of one part would otherwise come at once
                return {"type": "http.request", "body": piece, "more_body": True}
            if self._last:
                self._decoding = None
                self.reservation.shrink(min(self._received_bytes, self._held_bytes))
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            part = message.get("body", b"")
            self._coded_bytes += len(part)
            check_body_size(self._coded_bytes, self._max_bytes)
            self._last = not message.get("more_body", False)
            self._pieces = decoding.pieces(part, last=self._last)

    async def send(self, message: Message) -> None:
        """Send a part of the answer, unless the request was rejected before its first part."""
        if self.rejected is not None and not self.answered:
            return
        self.answered = True
        await self._send(message)


def _check_drain(request: Request) -> None:
    """Raise UnavailableError for requests of apps and tenants while the server drains."""
    if _top(request) == "v1" and request.app.state.draining.is_set():
        raise draining_error()


async def _principal(request: Request) -> Principal | None:
    """Return the owner of the request's key; None if no key is needed. Raises a FairServeError."""
    top = _top(request)
    if top not in ("v1", "admin"):
        return None
    principal = await authenticated(request)
    return require_scope(principal, "admin") if top == "admin" else principal


def _top(request: Request) -> str:
    path: str = request.scope["path"]
    return path.split("/", 2)[1] if path.startswith("/") else ""


def _decoding(request: Request) -> Decoding | None:
    """Return the decompression of a coded body, whose headers are then those of the plain one.

    Raises UnsupportedCodingError for a coding that is not read.
    """
    coding = coding_of(request.headers.getlist("content-encoding"))
    if coding is None:
        return None
    coded = (b"content-encoding", b"content-length")
    headers = request.scope["headers"]
    request.scope["headers"] = [each for each in headers if each[0] not in coded]
    request.state.coding = coding
    return Decoding(coding)


def _body_bytes(scope: Mapping[str, Any]) -> int | None:
    """Return the declared size of the body; 0 if it is sent in chunks, None if there is no body."""
    chunked = False
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value) or None
        chunked = chunked or name == b"transfer-encoding"
    return 0 if chunked else None
