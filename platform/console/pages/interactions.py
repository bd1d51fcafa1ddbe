"""Page of runs: a live list of runs in progress, then ended ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from sqlalchemy.exc import OperationalError
from starlette.responses import Response

from fairserve.platform.console.formats import part
from fairserve.platform.console.guard import AnyViewer
from fairserve.platform.console.lists import PER_PAGE, ListPart, asked_in, filters, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.streams import KEEP_ALIVE, event, stream
from fairserve.platform.control.messages import RunView
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.ledger import LedgerInteraction
from fairserve.platform.db.session import DatabaseUnavailableError
from fairserve.platform.serving.interactions.listing import (
    LIVE_STATES,
    ListedState,
    RunFilter,
    list_runs,
)
from fairserve.platform.serving.interactions.repository import last_end
from fairserve.platform.serving.interactions.schemas import (
    AnyInteractionQuery,
    InteractionOut,
    of_row,
    of_view,
)

PAGE = ConsolePage("interactions", "Runs", 40, "r")
router = APIRouter(prefix=PAGE.path)

POLL_INTERVAL_S = 2.0
MOST_SHARE = 0.02
"""Maximum share of the time spent on the detection of changes."""
SURE_S = 20.0
"""Seconds between unconditional reads of the list: an end may be stored late."""
MOST_LIVE = PER_PAGE
MOST_APPS = 8
"""Apps of the shown runs by which the list can be filtered with a click."""
STATES: Mapping[ListedState, str] = {
    "all": "All",
    "live": "In progress",
    "active": "Active",
    "held": "Held",
    "ended": "Ended",
    "complete": "Complete",
    "cancelled": "Cancelled",
    "aborted": "Aborted",
    "expired": "Expired",
}


class Facet(NamedTuple):
    """A value by which the list is filtered, as a link."""

    href: str
    text: str
    current: bool


class InteractionRow(NamedTuple):
    """A run in the list."""

    key: str
    """Id of its row in the page."""
    place: str
    tenant: str
    app: str
    run: InteractionOut
    lasted_s: float
    held: bool = False
    """True if it waits for memory."""


class InteractionRows(NamedTuple):
    """Shown part of the list."""

    live: list[RunView]
    more_live: bool
    ended: list[LedgerInteraction] | None
    """None while the database, which has them, does not answer."""
    more_ended: bool
    names: dict[str, str]
    """Names of the tenants and apps by id."""
    held: frozenset[str]
    """Those of ``live`` that wait for memory, by their core ids."""

    def values(self) -> dict[str, Any]:
        """Return the values for the template."""
        now = utc_now()
        return {
            "rows": [
                *(
                    _row(each.tenant, each.app, of_view(each), now)._replace(
                        held=each.interaction_id in self.held
                    )
                    for each in self.live
                ),
                *(
                    _row(each.tenant_id, each.app_id, of_row(each), now)
                    for each in self.ended or ()
                ),
            ],
            "ended_known": self.ended is not None,
            "names": self.names,
            "more_live": self.more_live,
        }


@router.get("")
async def show(request: Request, viewer: AnyViewer) -> Response:
    """Show live and ended runs, latest first; the first page of the list is live."""
    query = asked_in(request, viewer, AnyInteractionQuery)
    found = await _find(request, viewer, query)
    given = {name: text for name, text in filters(request).items() if name != "offset"}
    return await asyncio.to_thread(
        page,
        request,
        viewer,
        "interactions",
        given=given,
        states=_facets(request, "state", STATES, query.state),
        apps=_facets(request, "app", _apps(found), query.app),
        part=ListPart(
            query.offset,
            query.limit - len(found.live),
            len(found.ended or ()),
            None,
            found.more_ended,
        ),
        place=place(request),
        stream=None if query.offset else f"/console/interactions/stream?{urlencode(given)}",
        **found.values(),
    )


@router.get("/stream")
async def follow(request: Request, viewer: AnyViewer) -> Response:
    """Send the rows of the list when one has changed."""
    query = asked_in(request, viewer, AnyInteractionQuery)

    async def pieces() -> AsyncIterator[bytes]:
        factory = request.app.state.session_factory
        shown: tuple[list[RunView], datetime | None] | None = None
        text = ""
        due_s = sure_until_s = 0.0
        while True:
            piece = KEEP_ALIVE
            began_s = time.monotonic()
            if began_s >= due_s:
                now = (await _live(request, query), await asyncio.to_thread(_last_end, factory))
                # The duration of a live run grows with time.
                if now[0] or now != shown or began_s >= sure_until_s:
                    shown, sure_until_s = now, began_s + SURE_S
                    found = await _find(request, viewer, query)
                    before, text = text, await asyncio.to_thread(_text, viewer, found)
                    piece = KEEP_ALIVE if text == before else event("rows", text)
                due_s = began_s + (time.monotonic() - began_s) / MOST_SHARE
            yield piece
            await asyncio.sleep(POLL_INTERVAL_S)

    return stream(request, viewer, pieces)


async def _live(request: Request, query: AnyInteractionQuery) -> list[RunView]:
    """Return live runs, at most one more than shown."""
    state = request.app.state
    which = _which(query)
    if which.state == "all":
        which = replace(which, state="live")
    if which.state not in LIVE_STATES:
        return []
    some = query.model_copy(update={"limit": _most_live(query) + 1})
    found, _ = await list_runs(state.control, state.session_factory, which, some)
    return found


def _most_live(query: AnyInteractionQuery) -> int:
    """Return how many live runs are shown: beside ended ones half of a page, so that both have rows."""
    most = min(MOST_LIVE, query.limit)
    return most if query.state != "all" else (most + 1) // 2


def _apps(found: InteractionRows) -> dict[str, str]:
    """Return the names of the apps of the shown runs by id, in their order."""
    apps = {each.app for each in found.live} | {each.app_id for each in found.ended or ()}
    names = sorted((found.names.get(each, each), each) for each in apps)
    return {each: name for name, each in names[:MOST_APPS]}


def _facets(
    request: Request, field: str, values: Mapping[Any, str], current: str | None
) -> list[Facet]:
    """Return links to the list with another value of a filter; the one in force leads back to all."""
    kept = {name: text for name, text in filters(request).items() if name not in (field, "offset")}
    facets = []
    for value, text in values.items():
        given = {} if value == current else {field: value}
        facets.append(Facet(f"{PAGE.path}?{urlencode(kept | given)}", text, value == current))
    return facets


def _last_end(factory: SessionFactory) -> datetime | None:
    """Return the end of the run that ended last; None while the database does not answer."""
    try:
        return last_end(factory)
    except OperationalError:
        return None


async def _find(request: Request, viewer: Viewer, query: AnyInteractionQuery) -> InteractionRows:
    state = request.app.state
    which = _which(query)
    live = await _live(request, query)
    ended: list[LedgerInteraction] | None = []
    shown_live = live[: _most_live(query)]
    if which.state not in LIVE_STATES:
        wanted = replace(which, state="ended" if which.state == "all" else which.state)
        one_more = query.model_copy(update={"limit": query.limit - len(shown_live) + 1})
        try:
            _, ended = await list_runs(state.control, state.session_factory, wanted, one_more)
        except DatabaseUnavailableError:
            ended = None
    shown = shown_live, (ended or [])[: query.limit - len(shown_live)]
    apps = {each.app for each in shown[0]} | {each.app_id for each in shown[1]}
    tenants = {each.tenant for each in shown[0]} | {each.tenant_id for each in shown[1]}
    console: ConsoleState = state.console
    read = partial(
        console.names.read,
        state.session_factory,
        viewer.principal.sharer,
        tenants=tenants,
        apps=apps,
    )
    return InteractionRows(
        shown[0],
        len(live) > len(shown[0]),
        None if ended is None else shown[1],
        len(ended or ()) > len(shown[1]),
        await asyncio.to_thread(read) if apps else {},
        state.control.held_runs(each.interaction_id for each in shown_live),
    )


def _which(query: AnyInteractionQuery) -> RunFilter:
    return RunFilter(query.tenant, query.app, query.user, query.state)


def _text(viewer: Viewer, found: InteractionRows) -> str:
    return render("interaction_rows", viewer=viewer, **found.values())


def _row(tenant: str, app: str, run: InteractionOut, now: datetime) -> InteractionRow:
    where = f"/console/interactions/{part(tenant)}/{part(app)}/{part(run.id)}"
    kind = "live" if run.ended_at is None else "ended"
    key = f"{kind}-{sha256(where.encode()).hexdigest()[:16]}"
    lasted_s = ((run.ended_at or now) - run.opened_at).total_seconds()
    return InteractionRow(key, where, tenant, app, run, max(0.0, lasted_s))
