"""Page of the clients of the last half hour: service and entitled shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairserve.platform.console.guard import AnyViewer
from fairserve.platform.console.lists import ListPart, asked_in, filters, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.streams import KEEP_ALIVE, event, stream
from fairserve.platform.monitoring.client_pages import clients_page
from fairserve.platform.monitoring.client_views import ClientPage
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.flooding import Floods, find_floods, signs
from fairserve.platform.monitoring.schemas import ClientQuery

PAGE = ConsolePage("clients", "Clients", 32, "c", within="tenants")
router = APIRouter(prefix=PAGE.path)

POLL_INTERVAL_S = 1.0
POLLS_PER_REFRESH = 5
"""Number of polls after which the list is sent again."""
MOST_ALARMS = 3
PER_PAGE = 35
SORTS = (
    ("service_5m", "Share, 5 min"),
    ("service_1m", "Service, 1 min"),
    ("service_30m", "Service, 30 min"),
    ("queued_calls", "Queued"),
    ("running_calls", "Running"),
    ("refused_calls", "Rejected"),
    ("name", "Client"),
)
"""Fields by which the list can be sorted, with their labels."""


class _Found(NamedTuple):
    """The requested page of the list, and the flooding clients."""

    clients: ClientPage
    floods: Floods


@router.get("")
async def show(request: Request, viewer: AnyViewer) -> Response:
    """Show the live list."""
    query = asked_in(request, viewer, ClientQuery, PER_PAGE)
    found = await _read(request, query)
    kept = filters(request)
    values = await asyncio.to_thread(_values, request, viewer, query, found)
    return page(
        request,
        viewer,
        "clients",
        given=kept,
        stream=f"/console/clients/stream?{urlencode(kept)}",
        **values,
    )


@router.get("/stream")
async def follow(request: Request, viewer: AnyViewer) -> Response:
    """Send the list every few seconds."""
    query = asked_in(request, viewer, ClientQuery, PER_PAGE)

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            found = await _read(request, query)
            yield event("clients", await asyncio.to_thread(_part, request, viewer, query, found))
            for _ in range(POLLS_PER_REFRESH):
                await asyncio.sleep(POLL_INTERVAL_S)
                yield KEEP_ALIVE

    return stream(request, viewer, pieces)


async def _read(request: Request, query: ClientQuery) -> _Found:
    clients: Clients = request.app.state.clients
    reading = await clients.read(query.tenant)
    shown = await clients_page(reading, request.app.state.session_factory, query)
    return _Found(shown, find_floods(reading, MOST_ALARMS))


def _part(request: Request, viewer: Viewer, query: ClientQuery, found: _Found) -> str:
    return render("clients_part", viewer=viewer, **_values(request, viewer, query, found))


def _values(request: Request, viewer: Viewer, query: ClientQuery, found: _Found) -> dict[str, Any]:
    items = found.clients.items
    of_all, worst = found.floods
    named = [*items, *worst]
    console: ConsoleState = request.app.state.console
    names = console.names.read(
        request.app.state.session_factory,
        viewer.principal.sharer,
        tenants={each.tenant for each in named} if viewer.is_admin else (),
        apps={each.app for each in named},
    )
    shown, total = len(items), found.clients.total
    more = query.offset + shown < total
    return {
        "rows": [(each, signs(each, of_all)) for each in items],
        "worst": [(each, signs(each, of_all)) for each in worst],
        "names": names,
        "sort": query.sort,
        "sorts": [(name, title, _sorted_by(request, name)) for name, title in SORTS],
        "part": ListPart(query.offset, query.limit, shown, total, more),
        "place": _own_place(request),
    }


def _sorted_by(request: Request, name: str) -> str:
    kept = {**filters(request), "sort": name}
    kept.pop("offset", None)
    return f"/console/clients?{urlencode(kept)}"


def _own_place(request: Request) -> str:
    """Return the URL of the list, also for a request of its stream."""
    return "/console/clients" + place(request).removeprefix(request.url.path)
