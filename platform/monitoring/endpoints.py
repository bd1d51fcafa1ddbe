"""``/admin/live`` and ``/admin/clients``: current service, and the state of each client.

Tenants read their own flooding clients under ``/v1/clients/flooding``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import TypeAdapter

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db.schemas import UserId
from fairserve.platform.monitoring.client_pages import clients_page, flooding_clients
from fairserve.platform.monitoring.client_views import ClientPage
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.history import History
from fairserve.platform.monitoring.live_snapshot import LiveSnapshot
from fairserve.platform.monitoring.schemas import (
    ClientOut,
    ClientQuery,
    FloodQuery,
    FloodsOut,
    LiveQuery,
)
from fairserve.platform.tenancy.principals import TenantPrincipal, require_admin

router = APIRouter()

_SNAPSHOT = TypeAdapter(LiveSnapshot)


@router.get("/admin/live", response_model=LiveSnapshot, dependencies=[Depends(require_admin)])
async def read_live(request: Request, query: Annotated[LiveQuery, Query()]) -> Response:
    """Return the last half hour in buckets of five seconds, as arrays by time."""
    history: History = request.app.state.history
    found = history.snapshot(query.tenant, clients=query.clients, buckets=query.buckets)
    body = await asyncio.to_thread(_SNAPSHOT.dump_json, found)
    return Response(body, media_type="application/json")


@router.get("/admin/clients", dependencies=[Depends(require_admin)])
async def list_clients(request: Request, query: Annotated[ClientQuery, Query()]) -> ClientPage:
    """Return the clients of the last half hour, sorted by service."""
    clients: Clients = request.app.state.clients
    reading = await clients.read(query.tenant)
    return await clients_page(reading, request.app.state.session_factory, query)


@router.get("/admin/clients/flooding", dependencies=[Depends(require_admin)])
async def list_all_flooding_clients(
    request: Request, query: Annotated[FloodQuery, Query()]
) -> FloodsOut:
    """Return the clients that take far more than their share, or most of the queue."""
    state = request.app.state
    return await flooding_clients(state.clients, state.session_factory, query.tenant, query.limit)


@router.get("/v1/clients/flooding")
async def list_flooding_clients(
    request: Request, principal: TenantPrincipal, query: Annotated[FloodQuery, Query()]
) -> FloodsOut:
    """Return a tenant's own clients that take far more than their share of it, or of its queue."""
    state, tenant = request.app.state, principal.tenant_id
    return await flooding_clients(state.clients, state.session_factory, tenant, query.limit)


@router.get(
    "/admin/clients/{tenant_id}/{app_id}/{user:path}", dependencies=[Depends(require_admin)]
)
async def read_client(
    tenant_id: str, app_id: str, user: Annotated[UserId, Path()], request: Request
) -> ClientOut:
    """Return one client: service by time, weights, counters and credits by level, limits, calls."""
    clients: Clients = request.app.state.clients
    found = await clients.one(tenant_id, app_id, user)
    if found is None:
        raise NotFoundError(
            "the client had no call in the last 30 minutes", code="client_not_found"
        )
    return found
