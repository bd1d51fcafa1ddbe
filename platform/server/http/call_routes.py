"""The application of calls: everything between the access log and the function of a call's route.

Calls do not pass the middleware and the routes of FastAPI, which has the rest of the API. What is done
for a call before, while and after its body is read is here in its order: drain, key, coding, size and
memory of the body, the turn on the event loop, the kind of the key, the body, the route's function, its
answer or error with the headers of its app.

A call waits for its turn in rotation of tenants, or of the addresses of clients without a valid key
(:mod:`fairserve.engine.wire.loop_turns`): it is parsed, checked and often answered in one piece of 1 to
3 ms, and needs some 20 passes of the loop. So a crowd, such as eighty calls for a model that is not
served, makes no pass longer, and a call of another tenant does not wait for all of it in each.

Cost per request: a lookup in the cache of keys, and a pass over the headers.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairserve.engine.wire.loop_turns import LoopTurns
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.fleet.models import BODY_BASE_BYTES
from fairserve.platform.server.http.cors import add_cors_headers
from fairserve.platform.server.http.error_answers import api_error, error_response
from fairserve.platform.server.http.intake import check_drain
from fairserve.platform.server.http.request_body import (
    RequestBody,
    close_after,
    declared_bytes,
    decoding_of,
)
from fairserve.platform.serving.bodies import BodyMemory, BodyReservation
from fairserve.platform.serving.call_router import CallRoute, IncomingCall
from fairserve.platform.serving.completions.limit_headers import add_limit_headers
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal, require_scope
from fairserve.platform.tenancy.principals import address_of, authenticated


class CallRoutes:
    """ASGI application."""

    def __init__(
        self,
        rest: ASGIApp,
        routes: Iterable[CallRoute],
        memory: BodyMemory,
        max_body_bytes: int,
        turns: LoopTurns,
    ) -> None:
        """``rest`` serves what is no call; ``memory`` and ``turns`` are shared with it."""
        self._rest = rest
        self._routes = {route.path: route for route in routes}
        self._memory, self._max_body_bytes = memory, max_body_bytes
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        route = None
        if scope["type"] == "http" and scope["method"] == "POST":
            route = self._routes.get(scope["path"])
        if route is None:
            await self._rest(scope, receive, send)
            return
        scope["route"] = route  # for the access log
        answer, body = _Answer(scope, send), None
        try:
            body = await self._begin(scope, receive)
            principal: Principal = scope["state"]["principal"]
            await self._turns.turn(principal.sharer)
            require_scope(principal, "app")
            raw = await body.read()
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
            }
            call = IncomingCall(raw, headers, principal, body.reservation, scope["app"].state)
            response = await route.answer(call)
            await response(scope, receive, answer.send)
        except ClientDisconnect:  # nobody reads the answer
            await Response(status_code=499)(scope, receive, answer.send)
        except Exception as error:
            if answer.started:
                raise
            problem = api_error(error)
            await error_response(scope, problem)(scope, receive, answer.send)
            if type(problem) is FairServeError:
                raise  # a bug, which the server logs with its trace
        finally:
            if body is not None and not body.reservation.held_by_call:
                body.reservation.release()

    async def _begin(self, scope: Scope, receive: Receive) -> RequestBody:
        """Check the head, and return the body that arrives. Raises a FairServeError."""
        size_bytes = declared_bytes(scope)
        try:
            check_drain(scope)
            principal = await authenticated(scope)
            decoding = None if size_bytes is None else decoding_of(scope)
            reservation = BodyReservation(self._memory, principal.sharer)
            limit = self._max_body_bytes
            if not size_bytes or size_bytes > BODY_BASE_BYTES or decoding is not None:
                limit = self._limit(scope, principal)
            body = RequestBody(receive, limit, reservation, decoding=decoding)
            body.expect(size_bytes or 0)
        except FairServeError as error:
            if size_bytes is not None:
                close_after(error)
            await self._turns.turn(address_of(scope))
            raise
        return body

    def _limit(self, scope: Scope, principal: Principal) -> int:
        decisions: DecisionService = scope["app"].state.decisions
        limit = decisions.max_body_bytes(principal)
        return self._max_body_bytes if limit is None else min(limit, self._max_body_bytes)


class _Answer:
    """The answer to one call, whose head gets the headers of its app."""

    __slots__ = ("_scope", "_send", "started")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self.started = False

    async def send(self, message: Message) -> None:
        """Send a part."""
        if not self.started:
            self.started = True
            add_limit_headers(self._scope, message)
            add_cors_headers(self._scope, message)
        await self._send(message)
