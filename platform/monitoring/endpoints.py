"""``/admin/live`` and ``/admin/clients``: current service, and the state of each client."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import TypeAdapter

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db.schemas import UserId
from fairserve.platform.monitoring.client_pages import clients_page
from fairserve.platform.monitoring.client_views import ClientPage
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.history import History
from fairserve.platform.monitoring.live_snapshot import LiveSnapshot
from fairserve.platform.monitoring.schemas import ClientOut, ClientQuery, LiveQuery
from fairserve.platform.tenancy.principals import require_admin

router = APIRouter(prefix="/admin", dependencies=[Depends(require_admin)])

_SNAPSHOT = TypeAdapter(LiveSnapshot)


@router.get("/live", response_model=LiveSnapshot)
async def read_live(request: Request, query: Annotated[LiveQuery, Query()]) -> Response:
    """Return the last half hour in buckets of five seconds, as arrays by time."""
    history: History = request.app.state.history
    found = history.snapshot(query.tenant, clients=query.clients, buckets=query.buckets)
    body = await asyncio.to_thread(_SNAPSHOT.dump_json, found)
    return Response(body, media_type="application/json")


@router.get("/clients")
async def list_clients(request: Request, query: Annotated[ClientQuery, Query()]) -> ClientPage:
    """Return the clients of the last half hour, sorted by service."""
    state = request.app.state
    return await clients_page(state.clients, state.session_factory, query)


@router.get("/clients/{tenant_id}/{app_id}/{user:path}")
async def read_client(
    tenant_id: str, app_id: str, user: Annotated[UserId, Path()], request: Request
) -> ClientOut:
    """Return one client: service by time, weights, counters and credits by level, limits, calls."""
    clients: Clients = request.app.state.clients
    found = clients.one(tenant_id, app_id, user)
    if found is None:
        raise NotFoundError(
            "the client had no call in the last 30 minutes", code="client_not_found"
        )
    return ClientOut.of(found)
