"""``/v1/interactions``: open a run before its first call, read runs, end them.

Ids are clients' own and may have slashes, so the routes with a word at their end come first.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from fairserve.interactions.programs.program import ProgramLimits
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.live_stream import while_allowed
from fairserve.platform.db.schemas import ObjectId
from fairserve.platform.serving.decision.end_user import user_in_headers
from fairserve.platform.serving.described_body import described_body
from fairserve.platform.serving.in_database import read_in
from fairserve.platform.serving.interactions.drawing import draw
from fairserve.platform.serving.interactions.events import error_event
from fairserve.platform.serving.interactions.graph_view import GraphOut
from fairserve.platform.serving.interactions.listing import RunFilter, list_runs
from fairserve.platform.serving.interactions.opening import read_opening
from fairserve.platform.serving.interactions.schemas import (
    GraphQuery,
    InteractionList,
    InteractionOut,
    InteractionQuery,
    OwnerQuery,
    ProgramCreate,
    of_row,
    of_view,
)
from fairserve.platform.serving.interactions.service import Interactions, RunParts
from fairserve.platform.serving.principals import AppPrincipal
from fairserve.platform.serving.settings import ServingSettings
from fairserve.platform.tenancy.auth import Authenticator, Principal
from fairserve.platform.tenancy.principals import CurrentPrincipal
from fairserve.platform.tenancy.readers import Reader, asked_app

router = APIRouter(prefix="/v1/interactions", tags=["interactions"])


async def _service(request: Request, principal: AppPrincipal) -> Interactions:
    assert principal.tenant_id is not None, "only app keys have runs"
    assert principal.app_id is not None, "only app keys have runs"
    return Interactions(request.app.state.runs, principal.tenant_id, principal.app_id)


async def _readable(
    request: Request,
    principal: Reader,
    app: ObjectId | None = None,
    tenant: ObjectId | None = None,
) -> Interactions:
    app_id = await _asked_app(request, principal, OwnerQuery(app=app, tenant=tenant))
    if app_id is None:
        raise InvalidRequestError(
            f"a key of scope {principal.scope} names an app here: ?app=app_...", param="app"
        )
    assert principal.tenant_id is not None, "a reader has a tenant"
    return Interactions(request.app.state.runs, principal.tenant_id, app_id)


async def _asked_app(request: Request, principal: Principal, query: OwnerQuery) -> str | None:
    """Return the app that the query names; None: all apps of the tenant. Raises NotFoundError."""
    if query.app in (None, principal.app_id):
        return principal.app_id
    asking = partial(asked_app, principal=principal, query=query)
    return await read_in(request.app.state.session_factory, asking)


async def written(body: BaseModel) -> Response:
    """Return the answer as JSON, encoded in a thread: it may have megabytes."""

    def write() -> bytes:
        return body.model_dump_json().encode("utf-8")

    return Response(await asyncio.to_thread(write), media_type="application/json")


SVG_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
Service = Annotated[Interactions, Depends(_service)]
Readable = Annotated[Interactions, Depends(_readable)]
"""An app key reads runs of its app, a tenant key those of an app that it names."""


@router.post("", status_code=201, openapi_extra=described_body(ProgramCreate, required=False))
async def open_interaction(
    request: Request, service: Service, principal: AppPrincipal
) -> InteractionOut:
    """Open an empty run, whose id goes into ``X-Interaction-Id`` of its calls, or start a program."""
    opening = await read_opening(await request.body(), ProgramLimits())
    if opening.run.user is None:
        opening.run.user = user_in_headers(request.headers, principal.user_headers)
    return await service.open(opening)


@router.get("")
async def list_interactions(
    request: Request, principal: Reader, query: Annotated[InteractionQuery, Query()]
) -> InteractionList:
    """Live runs and ended ones of an app, or of all apps of a tenant, or of one that it names.

    ``offset`` counts among the ended. A run that ended less than a second ago may be in neither part.
    """
    app_id = await _asked_app(request, principal, query)
    which = RunFilter(principal.tenant_id, app_id, state=query.state)
    parts: RunParts = request.app.state.runs
    live, ended = await list_runs(parts.control, parts.sessions, which, query)
    return InteractionList(items=[*map(of_view, live), *map(of_row, ended)])


@router.get("/{interaction_id:path}/graph", response_model=GraphOut)
async def read_graph(
    interaction_id: str, service: Readable, query: Annotated[GraphQuery, Query()]
) -> Response:
    """A page of the calls, what each follows, and how each is doing; ``format=svg`` draws them."""
    graph = await service.graph(interaction_id, limit=query.limit, offset=query.offset)
    if query.format == "json":
        return await written(graph)
    picture = await asyncio.to_thread(draw, graph)
    return Response(picture, media_type="image/svg+xml", headers=SVG_HEADERS)


@router.get(
    "/{interaction_id:path}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def follow_interaction(
    interaction_id: str, request: Request, service: Readable, principal: CurrentPrincipal
) -> StreamingResponse:
    """Server-sent events: the current state of the run, then each change, to its end.

    The stream also ends, with an ``error``, soon after the key stops working.
    """
    settings: ServingSettings = request.app.state.settings.serving
    authenticator: Authenticator = request.app.state.authenticator
    events = while_allowed(
        await service.follow(interaction_id, settings.keepalive_s, principal.sharer),
        lambda: authenticator.confirm(principal),
        error_event,
    )
    return StreamingResponse(events, media_type="text/event-stream", headers=SSE_HEADERS)


@router.post("/{interaction_id:path}/close")
async def close_interaction(interaction_id: str, service: Service) -> dict[str, Any]:
    """The run is complete; calls that still run may end."""
    return {
        "id": interaction_id,
        "object": "interaction",
        "closed": True,
        "live_calls": await service.close(interaction_id),
    }


@router.get("/{interaction_id:path}", response_model=InteractionOut)
async def read_interaction(interaction_id: str, service: Readable) -> Response:
    """One run; a program with the outputs that it has so far."""
    return await written(await service.get(interaction_id))


@router.delete("/{interaction_id:path}")
async def cancel_interaction(interaction_id: str, service: Service) -> dict[str, Any]:
    """Cancel the run and all its calls, queued or running."""
    await service.cancel(interaction_id)
    return {"id": interaction_id, "object": "interaction", "cancelled": True}
