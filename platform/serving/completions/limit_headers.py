"""Add ``x-ratelimit-*`` to every answer to an app key, errors included.

Answers to calls have headers for the call's user. All others, errors before the user is known included,
get those of calls that name no user.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal

_FIRST = b"x-ratelimit-"


class LimitHeaders:
    """Adds the headers where they are missing. O(holders of limits) for each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def added(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_limit_headers(scope, message)
            await send(message)

        await self._app(scope, receive, added)


def add_limit_headers(scope: Scope, message: Message) -> None:
    """Add the headers to the head of the answer to a request, unless it has some."""
    principal: Principal | None = scope.get("state", {}).get("principal")
    if principal is None or principal.app_id is None or principal.tenant_id is None:
        return
    if any(name.startswith(_FIRST) for name, _ in message["headers"]):
        return
    decisions: DecisionService = scope["app"].state.decisions
    if found := decisions.limit_headers(principal):
        MutableHeaders(scope=message).update(found)
