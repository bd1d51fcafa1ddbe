"""Requests that make no call: each takes a place before it takes anything else that is scarce.

A place is the right to a thread and a database connection, of which management has enough for all its
places (:mod:`fairserve.platform.base.bulkhead`). So a request that waits holds nothing, and one that
has a place waits for nothing of other tenants. Tenants take turns; one tenant has a third of the places
at most. The requests of a key and of a tenant that wait or run are bounded; more are answered 429.

Before that it waits for its turn on the event loop, in rotation with calls
(:mod:`fairserve.platform.server.http.call_routes`): programs in rotation of tenants, others of the
addresses of clients.

A request takes its place when its body has arrived, and releases it when its answer begins: neither a
slow upload nor a slow reader holds one.

Weakness: a stream reads on without a place while it lasts; each of its reads is short.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairserve.engine.wire.loop_turns import LoopTurns
from fairserve.platform.base.bulkhead import as_management, work_for
from fairserve.platform.base.errors import FairServeError, RateLimitedError
from fairserve.platform.base.turns import Turns
from fairserve.platform.console.errors import is_console
from fairserve.platform.console.guard import COOKIE, signed_in
from fairserve.platform.server.http.intake import PROGRAMS, UPLOADS, Answer
from fairserve.platform.tenancy.principals import address_of, authenticated

PLACES = 6
"""Requests that run at a time. Their threads compete with the event loop for the interpreter: with six
of one tenant calls took 1.5 times as long, with two 1.2 times."""
TENANT_PLACES = 2
KEY_REQUESTS = 32
"""Requests of one key, or of one session of the console, that wait or run at a time."""
TENANT_REQUESTS = 128
"""Requests of one tenant that wait or run at a time."""
RETRY_S = "1"


_WITHOUT_DATABASE = ("/v1/models", "/console/static/")


class Asker(NamedTuple):
    """The tenant and the key of a request."""

    tenant: str
    key: str


class Management:
    """ASGI middleware. Cost per request: a lookup in the cache of keys, and a few additions."""

    def __init__(self, app: ASGIApp, answer: Answer, loop_turns: LoopTurns) -> None:
        """``answer`` makes the response of a rejected request; ``loop_turns`` are shared with calls."""
        self._app, self._answer = app, answer
        self._loop_turns = loop_turns
        self._turns = Turns(PLACES, TENANT_PLACES)
        self._of_key: Counter[str] = Counter()
        self._of_tenant: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "POST" and scope["path"] == PROGRAMS:
            await self._loop_turns.turn(await _caller(scope))
            await self._app(scope, receive, send)
            return
        await self._loop_turns.turn(address_of(scope))
        if not _is_management(scope):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        asker = await _asker(request)
        if asker is None:
            with as_management():
                await self._app(scope, receive, send)
            return
        try:
            with self._counted(asker), as_management():
                if _is_upload(scope):
                    await self._app(scope, receive, send)
                else:
                    await self._in_place(asker.tenant, scope, receive, send)
        except _TooManyError as error:
            await self._answer(request, error.answer)(scope, receive, send)

    @contextmanager
    def _counted(self, asker: Asker) -> Iterator[None]:
        """Count the request within the block. Raises _TooManyError at a bound."""
        for counts, owner, limit, what in (
            (self._of_key, asker.key, KEY_REQUESTS, "key"),
            (self._of_tenant, asker.tenant, TENANT_REQUESTS, "tenant"),
        ):
            if counts[owner] >= limit:
                raise _TooManyError(what, limit)
        self._of_key[asker.key] += 1
        self._of_tenant[asker.tenant] += 1
        try:
            yield
        finally:
            for counts, owner in ((self._of_key, asker.key), (self._of_tenant, asker.tenant)):
                counts[owner] -= 1
                if not counts[owner]:
                    del counts[owner]

    async def _in_place(self, tenant: str, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = await _arrived(scope, receive)
        await self._turns.take(tenant)
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._turns.release(tenant)

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                release()
            await send(message)

        try:
            await self._app(scope, arrived, answered)
        finally:
            release()


class _TooManyError(Exception):
    """Too many requests of a key or a tenant are in progress."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what)
        self.answer = RateLimitedError(
            f"{limit} requests of this {what} are in progress, which is the limit for requests that"
            f" make no call; retry in {RETRY_S} s, with fewer at a time",
            code="too_many_requests_in_progress",
            headers={"Retry-After": RETRY_S},
        )


def _is_management(scope: Scope) -> bool:
    """Return whether a request that makes no call is for the API or the console."""
    path: str = scope["path"]
    top = path.split("/", 2)[1] if path.startswith("/") else ""
    if top not in ("v1", "admin", "console", "metrics"):
        return False
    if scope["method"] == "POST":
        return True
    return not any(path.startswith(each) for each in _WITHOUT_DATABASE)


def _is_upload(scope: Scope) -> bool:
    return bool(scope["method"] == "POST" and scope["path"] == UPLOADS)


async def _caller(scope: Scope) -> str:
    """Return the tenant of a program, or the address of a client without a valid key."""
    try:
        return (await authenticated(scope)).sharer
    except FairServeError:
        return address_of(scope)


async def _asker(request: Request) -> Asker | None:
    """Return whose request it is; None without a valid key or session: it only reads or changes who
    is signed in, which is bounded elsewhere.
    """
    if is_console(request):
        if COOKIE not in request.cookies:
            return None
        viewer = None
        work_for(address_of(request.scope))
        # Without a database the page itself answers so.
        with as_management(), contextlib.suppress(SQLAlchemyError, FairServeError):
            viewer = await asyncio.to_thread(signed_in, request)
        if viewer is None:
            return None
        work_for(viewer.principal.sharer)
        return Asker(viewer.principal.sharer, viewer.session_id)
    try:
        principal = await authenticated(request.scope)
    except FairServeError:
        return None
    return Asker(principal.sharer, principal.key_id)


async def _arrived(scope: Scope, receive: Receive) -> Receive:
    """Wait for the body, whose size and memory are checked before, and return what repeats it."""
    messages: list[Message] = []
    if any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"]):
        while True:
            message = await receive()
            messages.append(message)
            if message["type"] != "http.request" or not message.get("more_body", False):
                break
    left = iter(messages)

    async def repeated() -> Message:
        for message in left:
            return message
        return await receive()

    return repeated
