"""Live pages: server-sent events while the page is open and its session is valid.

Beside its own events each stream has ``status``, the status line: at its begin, at each change, and
every few seconds, by which the browser notices a server that is away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Generic, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.base.live_stream import while_allowed
from fairserve.platform.console.guard import SignInNeededError
from fairserve.platform.console.rendering import render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.status_view import status_view
from fairserve.platform.db.base import utc_now

KEEP_ALIVE = b": keep-alive\n\n"
STATUS_S = 4.0
"""Longest pause between two status lines, in seconds."""
MEDIA_TYPE = "text/event-stream"

Source = Callable[[], AsyncIterator[bytes]]
Update = TypeVar("Update")


def event(name: str, data: str | bytes) -> bytes:
    """Return an event; ``data`` may have several lines."""
    text = data if isinstance(data, str) else data.decode()
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode()


def stream(request: Request, viewer: Viewer, source: Source) -> StreamingResponse:
    """Return a response that streams the chunks of ``source``.

    The source yields a chunk at least every two seconds, :data:`KEEP_ALIVE` if there is no event, to
    detect a disconnected browser. The session is checked every few seconds.

    Raises UnavailableError if too many live pages are open.
    """
    state = request.app.state
    console: ConsoleState = state.console
    console.streams.check(viewer.principal.sharer)

    def check_session() -> None:
        if not console.sessions.still_holds(
            state.session_factory, viewer, state.settings.tenancy, utc_now()
        ):
            raise SignInNeededError("signed out")

    def status() -> bytes:
        line = render("status_line", line=status_view(state, viewer), is_admin=viewer.is_admin)
        return event("status", line)

    async def events() -> AsyncIterator[bytes]:
        with console.streams.one(viewer.principal.sharer):
            sent, sent_s = await asyncio.to_thread(status), time.monotonic()
            yield b"retry: 3000\n\n" + sent
            async with aclosing(source()) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    yield piece
                    line, now_s = await asyncio.to_thread(status), time.monotonic()
                    if line != sent or now_s - sent_s >= STATUS_S:
                        sent, sent_s = line, now_s
                        yield line
                    if state.draining.is_set():
                        return

    def ending(error: FairServeError) -> bytes:
        # Without this event the browser would reconnect.
        return event("over", error.message) if isinstance(error, SignInNeededError) else KEEP_ALIVE

    answer = while_allowed(
        events(),
        partial(asyncio.to_thread, check_session),
        ending,
    )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(answer, media_type=MEDIA_TYPE, headers=headers)


class Latest(Generic[Update]):
    """The latest update: a slow page skips older ones."""

    def __init__(self) -> None:
        self._newest: Update | None = None
        self._fresh = asyncio.Event()

    def publish(self, update: Update) -> None:
        """Replace the latest update. Called on the event loop."""
        self._newest = update
        self._fresh.set()

    async def next(self, wait_s: float) -> Update | None:
        """Wait for an update and return it; None after ``wait_s`` without one."""
        try:
            async with asyncio.timeout(wait_s):
                await self._fresh.wait()
        except TimeoutError:
            return None
        self._fresh.clear()
        return self._newest


@contextmanager
def latest(
    watch: Callable[[Callable[[Update], None]], Callable[[], None]],
) -> Iterator[Latest[Update]]:
    """Subscribe to updates within the block. ``watch`` adds a listener and returns its removal."""
    updates: Latest[Update] = Latest()
    stop = watch(updates.publish)
    try:
        yield updates
    finally:
        stop()
