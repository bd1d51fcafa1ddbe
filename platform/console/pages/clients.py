"""The clients of the last half hour: who is served how much, against what each is entitled to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairserve.platform.console.flooding import Totals, signs, totals, worst
from fairserve.platform.console.guard import AnyViewer, scoped
from fairserve.platform.console.lists import PER_PAGE, Part, asked, filters, place
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.streams import KEEP_ALIVE, event, stream
from fairserve.platform.control.port import ControlPort
from fairserve.platform.control.schemas import ClientQuery
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.names import names_of
from fairserve.platform.monitoring.client_pages import clients_page
from fairserve.platform.monitoring.client_views import ClientPage, ClientView

router = APIRouter(prefix="/console/clients")

LOOK_S = 1.0
LOOKS = 5
"""The list is shown anew after so many."""
MOST_ALARMS = 3
SORTS = (
    ("service_5m", "Share, 5 min"),
    ("service_1m", "1 min"),
    ("service_30m", "30 min"),
    ("queued_calls", "Queued"),
    ("running_calls", "Running"),
    ("refused_calls", "Refused"),
    ("name", "Client"),
)
"""By what the list can be sorted, and how that is called."""


class _Found(NamedTuple):
    """The asked part of the list, and what is told above it."""

    clients: ClientPage
    of_all: Totals
    worst: list[ClientView]


@router.get("")
async def show(request: Request, viewer: AnyViewer) -> Response:
    """The list, live."""
    query = _query(request, viewer)
    found = await _look(request, query)
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
    """The list anew every few seconds."""
    query = _query(request, viewer)

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            found = await _look(request, query)
            yield event("clients", await asyncio.to_thread(_part, request, viewer, query, found))
            for _ in range(LOOKS):
                await asyncio.sleep(LOOK_S)
                yield KEEP_ALIVE

    return stream(request, viewer, pieces)


def _query(request: Request, viewer: Viewer) -> ClientQuery:
    tenant = scoped(viewer, filters(request).get("tenant"), request)
    return asked(request, ClientQuery, **({} if tenant is None else {"tenant": tenant}))


async def _look(request: Request, query: ClientQuery) -> _Found:
    control: ControlPort = request.app.state.control
    clients = await clients_page(
        request.app.state.control, request.app.state.session_factory, query
    )
    queued = await control.clients(query.tenant, limit=PER_PAGE, sort="queued_calls")
    refused = await control.clients(query.tenant, limit=PER_PAGE, sort="refused_calls")
    served = await control.clients(query.tenant, limit=PER_PAGE, sort="service_5m")
    of_all = totals(queued.items, refused.items)
    alarms = worst((*served.items, *queued.items), of_all, MOST_ALARMS)
    return _Found(clients, of_all, alarms)


def _part(request: Request, viewer: Viewer, query: ClientQuery, found: _Found) -> str:
    return render("clients_part", viewer=viewer, **_values(request, viewer, query, found))


def _values(request: Request, viewer: Viewer, query: ClientQuery, found: _Found) -> dict[str, Any]:
    items = found.clients.items
    named = [*items, *found.worst]
    with request.app.state.session_factory() as session:
        names = names_of(
            read_only(session),
            tenants={each.tenant for each in named} if viewer.is_admin else (),
            apps={each.app for each in named},
        )
    shown, total = len(items), found.clients.total
    more = query.offset + shown < total
    return {
        "rows": [(each, signs(each, found.of_all)) for each in items],
        "worst": [(each, signs(each, found.of_all)) for each in found.worst],
        "names": names,
        "sort": query.sort,
        "sorts": [(name, title, _sorted_by(request, name)) for name, title in SORTS],
        "part": Part(query.offset, query.limit, shown, total, more),
        "place": _own_place(request),
    }


def _sorted_by(request: Request, name: str) -> str:
    kept = {**filters(request), "sort": name}
    kept.pop("offset", None)
    return f"/console/clients?{urlencode(kept)}"


def _own_place(request: Request) -> str:
    """Of the list, from its stream, too."""
    return "/console/clients" + place(request).removeprefix(request.url.path)
