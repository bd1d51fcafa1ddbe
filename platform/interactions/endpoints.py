"""``/v1/interactions``: open a run before its first call, look at runs, end them.

Ids are clients' own and may have slashes, so the routes with a word at their end come first.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from fairserve.platform.auth import AppPrincipal
from fairserve.platform.interactions.drawing import draw
from fairserve.platform.interactions.graph_view import GraphOut
from fairserve.platform.interactions.schemas import (
    GraphQuery,
    InteractionCreate,
    InteractionList,
    InteractionOut,
    InteractionQuery,
)
from fairserve.platform.interactions.service import Interactions

router = APIRouter(prefix="/v1/interactions", tags=["interactions"])


def _service(request: Request, principal: AppPrincipal) -> Interactions:
    state = request.app.state
    return Interactions(state.control, state.session_factory, state.ledger, principal)


SVG_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}

Service = Annotated[Interactions, Depends(_service)]


@router.post("", status_code=201)
async def open_interaction(
    service: Service, body: InteractionCreate | None = None
) -> InteractionOut:
    """Open an empty run; its id goes into ``X-Interaction-Id`` of the calls."""
    return await service.open(body or InteractionCreate())


@router.get("")
async def list_interactions(
    service: Service, query: Annotated[InteractionQuery, Query()]
) -> InteractionList:
    """Live runs and ended ones."""
    return InteractionList(data=await service.list(query))


@router.get("/{interaction_id:path}/graph", response_model=GraphOut)
async def read_graph(
    interaction_id: str, service: Service, query: Annotated[GraphQuery, Query()]
) -> GraphOut | Response:
    """Calls, what each follows, and how each is doing; ``format=svg`` draws it."""
    graph = await service.graph(interaction_id)
    if query.format == "json":
        return graph
    picture = await asyncio.to_thread(draw, graph)
    return Response(picture, media_type="image/svg+xml", headers=SVG_HEADERS)


@router.post("/{interaction_id:path}/close")
async def close_interaction(interaction_id: str, service: Service) -> dict[str, Any]:
    """The run is complete; calls that still run may end."""
    left = await service.close(interaction_id, cancel=False)
    return {
        "id": interaction_id,
        "object": "interaction",
        "closed": True,
        "live_calls": left.live_calls if left else 0,
    }


@router.get("/{interaction_id:path}")
async def read_interaction(interaction_id: str, service: Service) -> InteractionOut:
    """One run."""
    return await service.get(interaction_id)


@router.delete("/{interaction_id:path}")
async def cancel_interaction(interaction_id: str, service: Service) -> dict[str, Any]:
    """Cancel the run and all its calls, queued or running."""
    await service.close(interaction_id, cancel=True)
    return {"id": interaction_id, "object": "interaction", "cancelled": True}
