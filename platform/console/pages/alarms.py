"""Page of alarms: those that are open or acknowledged, live, and the history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from fairserve.platform.background.alarms.alarm import ALARM_KINDS
from fairserve.platform.background.alarms.endpoints import acknowledge_alarm, alarms_page
from fairserve.platform.background.alarms.schemas import AlarmOut, AlarmQuery
from fairserve.platform.console.guard import AdminViewer, AnyViewer, OwnForm
from fairserve.platform.console.lists import asked_in, filters, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.pages.overview import page_of
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.streams import KEEP_ALIVE, event, stream
from fairserve.platform.db.schemas import Page
from fairserve.platform.db.session import WriteSession

PAGE = ConsolePage("alarms", "Alerts", 20, "l")
router = APIRouter(prefix=PAGE.path)

POLL_INTERVAL_S = 2.0


@router.get("")
async def show(request: Request, viewer: AnyViewer) -> Response:
    """Show the current alarms, bad ones first, or resolved ones, the latest first."""
    query = asked_in(request, viewer, AlarmQuery)
    found = await _read(request, viewer, query)
    given = {name: text for name, text in filters(request).items() if name != "offset"}
    live = query.state == "current" and not query.offset
    return page(
        request,
        viewer,
        "alarms",
        given=given,
        state=query.state,
        kinds=ALARM_KINDS,
        part=part_of(found),
        place=place(request),
        stream=f"{PAGE.path}/stream?{urlencode(given)}" if live else None,
        **await _rows(request, viewer, found.items),
    )


@router.get("/stream")
async def follow(request: Request, viewer: AnyViewer) -> Response:
    """Send the rows of the list when an alarm has changed."""
    query = asked_in(request, viewer, AlarmQuery)

    async def pieces() -> AsyncIterator[bytes]:
        shown: list[AlarmOut] | None = None
        while True:
            found = await _read(request, viewer, query)
            if found.items == shown:
                yield KEEP_ALIVE
            else:
                shown = found.items
                rows = await _rows(request, viewer, shown)
                yield event("rows", render("alarm_rows", viewer=viewer, **rows))
            await asyncio.sleep(POLL_INTERVAL_S)

    return stream(request, viewer, pieces)


@router.post("/{alarm_id}/acknowledge")
def acknowledge(
    alarm_id: str, request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession
) -> Response:
    """Acknowledge an alarm, here or on the page Now, which is shown again."""
    acknowledge_alarm(alarm_id, request, session, viewer.principal)
    return RedirectResponse(page_of(form, PAGE).path, status_code=303)


async def _read(request: Request, viewer: Viewer, query: AlarmQuery) -> Page[AlarmOut]:
    return await alarms_page(request, query, query.tenant, viewer.tenant_id)


async def _rows(request: Request, viewer: Viewer, alarms: list[AlarmOut]) -> dict[str, Any]:
    """Return the values of the rows: the alarms, and the names of their tenants and apps."""
    console: ConsoleState = request.app.state.console
    read = partial(
        console.names.read,
        request.app.state.session_factory,
        viewer.principal.sharer,
        tenants={each.tenant for each in alarms if each.tenant},
        apps={each.app for each in alarms if each.app},
    )
    return {"alarms": alarms, "names": await asyncio.to_thread(read)}
