"""HEAD: what GET would answer, without the body.

FastAPI's routes take the methods that they name, and none names HEAD. So the application gets a GET, and
its answer ends after the head: an answer without an end, such as a stream of events, then finds its
client disconnected. Cost: that of the GET up to its head.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = False

        async def send_head(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                await send(message)
                answered = True
                await send({"type": "http.response.body", "body": b""})

        async def receive_until_answered() -> Message:
            return {"type": "http.disconnect"} if answered else await receive()

        get = {**scope, "method": "GET"}
        try:
            await self._app(get, receive_until_answered, send_head)
        finally:
            if "route" in get:
                scope["route"] = get["route"]  # for the access log
