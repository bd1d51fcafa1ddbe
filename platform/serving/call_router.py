"""Routes that answer calls of apps. FastAPI describes them and does not serve them.

The server's application of calls (:mod:`fairserve.platform.server.http.call_routes`) reads key and body
of a request, and calls the route's function. FastAPI has the routes, too: for ``/openapi.json``, for
other methods (405), and for paths with a slash at their end (307).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.datastructures import State
from starlette.types import ASGIApp

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.serving.bodies import BodyReservation
from fairserve.platform.serving.described_body import described_body
from fairserve.platform.serving.principals import calling_app
from fairserve.platform.tenancy.auth import Principal


@dataclass(slots=True)
class IncomingCall:
    """A request whose body has arrived."""

    raw: bytes
    headers: dict[str, str]
    """Request headers by lower-case name."""
    principal: Principal
    """The app whose key the request carries."""
    reservation: BodyReservation
    """Memory of the body."""
    services: State
    """State of the application."""


Answer = Callable[[IncomingCall], Awaitable[ASGIApp]]
"""Returns what sends the answer to a call. Raises a FairServeError."""


@dataclass(frozen=True, slots=True)
class CallRoute:
    """A path whose POST is a call."""

    path: str
    answer: Answer


class CallRouter(APIRouter):
    """A router of FastAPI that has routes of calls, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[CallRoute] = []

    def call(
        self, path: str, body: type[BaseModel], *, response_model: Any = None
    ) -> Callable[[Answer], Answer]:
        """Add a function as the route of a path; its name and docstring describe it."""

        def add(answer: Answer) -> Answer:
            self.calls.append(CallRoute(self.prefix + path, answer))
            self.add_api_route(
                path,
                _no_call,
                methods=["POST"],
                name=answer.__name__,
                description=answer.__doc__,
                response_model=response_model,
                dependencies=[Depends(calling_app)],
                openapi_extra=described_body(body),
            )
            return answer

        return add


async def _no_call() -> None:
    """Answer a path that FastAPI takes for the route's and that is not, such as one with a line feed."""
    raise NotFoundError("there is no such path")
