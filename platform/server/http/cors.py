"""CORS: lets the pages of an app's origins call with the app's key, and read the answers.

Each app has origins of its own, which Starlette's middleware, with one list for all, cannot know. A
preflight is answered here, for the origins of all apps; the answer to the request itself names the
origin only if it is one of the app whose key the request has. So an answer without a valid key (401)
has no header, nor has one to a tenant's or an operator's key. Only paths under ``/v1`` take part.
There are no credentials but the key, so ``Access-Control-Allow-Credentials`` is never sent.

Weakness: the internal error (500) of a request that makes no call is answered outside of this
middleware, and a page cannot read it.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairserve.platform.serving.cors_headers import cors_headers
from fairserve.platform.tenancy.auth import Authenticator, Principal

ALLOWED_METHODS = "GET, POST, DELETE"
MAX_AGE_S = "600"
"""Seconds for which a browser keeps the answer to a preflight."""
_HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,2000}")


class Cors:
    """ASGI middleware. Cost of an answer to a page: a pass over its headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        headers = Headers(raw=scope["headers"])
        if scope["method"] == "OPTIONS" and "origin" in headers:
            answer = await _preflight(scope, headers)
            await (answer or self._app)(scope, receive, send)
            return

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_cors_headers(scope, message)
            await send(message)

        await self._app(scope, receive, answered)


async def _preflight(scope: Scope, headers: Headers) -> Response | None:
    """Return the answer to a preflight from the origin of any app; None: it is not one."""
    authenticator: Authenticator = scope["app"].state.authenticator
    origin = headers["origin"]
    if "access-control-request-method" not in headers:
        return None
    if not await authenticator.origins.allow(origin):
        return None
    allowed = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": ALLOWED_METHODS,
        "access-control-max-age": MAX_AGE_S,
        "vary": "Origin, Access-Control-Request-Headers",
    }
    asked = headers.get("access-control-request-headers", "")
    if _HEADER_NAMES.fullmatch(asked):
        allowed["access-control-allow-headers"] = asked
    return Response(status_code=204, headers=allowed)


def add_cors_headers(scope: Scope, message: Message) -> None:
    """Add the headers for the app of a request to the head of its answer."""
    principal: Principal | None = scope.get("state", {}).get("principal")
    if principal is None or not principal.origins:
        return
    headers = MutableHeaders(scope=message)
    origin = Headers(raw=scope["headers"]).get("origin")
    for name, value in cors_headers(principal, origin, headers.keys()).items():
        if name == "vary":
            headers.add_vary_header(value)
        else:
            headers[name] = value
