"""The HTTP side behind Envoy: the client's address, and the calls that the Python relay takes over.

These middlewares belong only to an application that listens on a Unix socket of a private folder: they
trust what Envoy reports there. Envoy removes the headers that they read from the requests of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairserve.platform.base.errors import FairServeError, UnavailableError
from fairserve.platform.envoy.access_log_configuration import CALL_HEADER
from fairserve.platform.envoy.listener import RELAY_HEADER
from fairserve.platform.envoy.open_calls import OpenCalls
from fairserve.platform.serving.bodies import BodyMemory
from fairserve.platform.serving.completions.service import Completions

ATTEMPT_HEADER = "x-envoy-attempt-count"
"""Number of the attempt, from 1, which Envoy sets in each request to the relay."""
_MARKS = ((RELAY_HEADER.encode(), b"1"), (b"x-envoy-ratelimited", b"1"))
"""Headers by which Envoy knows that the relay answers, and that no attempt may follow."""
_FORWARDED_FOR = b"x-forwarded-for"


@dataclass(frozen=True)
class BehindEnvoy:
    """Parts that the application shares with the decision adapter."""

    bodies: BodyMemory
    calls: OpenCalls
    scheme: Literal["http", "https"] = "http"
    """Scheme of Envoy's public side."""


def envoys_client(scope: Mapping[str, Any], scheme: str = "http") -> dict[str, Any]:
    """Return the scope with Envoy's client as the peer of the connection, and Envoy's own scheme.

    Envoy appends the address of its client to ``X-Forwarded-For``. Without that entry the scope is as it
    would be if the client were connected to the server, so that trusted proxies work alike.
    """
    kept: list[tuple[bytes, bytes]] = []
    forwarded: list[bytes] = []
    for name, value in scope["headers"]:
        if name == _FORWARDED_FOR:
            forwarded.append(value)
        else:
            kept.append((name, value))
    before, _, peer = b",".join(forwarded).rpartition(b",")
    if before:
        kept.append((_FORWARDED_FOR, before))
    client = (peer.strip().decode("latin-1"), 0)
    client_or_none = client if client[0] else None
    return {**scope, "headers": kept, "client": client_or_none, "scheme": scheme}


class EnvoysClient:
    """ASGI middleware that gives each request Envoy's client. It must be the outermost."""

    def __init__(self, app: ASGIApp, scheme: str) -> None:
        self._app = app
        self._scheme = scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            scope = envoys_client(scope, self._scheme)
        await self._app(scope, receive, send)


class Takeovers:
    """ASGI middleware that lets the relay answer the calls that Envoy cannot carry, or could not."""

    def __init__(
        self,
        app: ASGIApp,
        calls: OpenCalls,
        answer: Callable[[Request, FairServeError], Response],
    ) -> None:
        """``answer`` makes the response of an error."""
        self._app = app
        self._calls = calls
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        record_id = None
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            record_id = headers.get(CALL_HEADER.encode())
        if record_id is None:
            await self._app(scope, receive, send)
            return
        # Without a number it is not known whether a worker has had the call.
        failed = headers.get(ATTEMPT_HEADER.encode(), "") != "1"
        response = await self._response(Request(scope), record_id, failed=failed)

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_MARKS]}
            await send(message)

        await response(scope, receive, marked)

    async def _response(self, request: Request, record_id: str, *, failed: bool) -> Response:
        call = self._calls.get(record_id)
        begun = None if call is None else await call.take_over(failed=failed)
        if call is None or begun is None:
            error = UnavailableError(
                "the call is not in progress any more", headers={"Retry-After": "5"}
            )
            return self._answer(request, error)
        request.state.principal = call.principal
        completions: Completions = request.app.state.completions
        return completions.respond(completions.relayed(call.prepared, begun))
