"""Pages of rejected calls: a live list, and the explanation of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.responses import Response

from fairserve.platform.console.guard import AnyViewer
from fairserve.platform.console.lists import asked_in, filters, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.streams import KEEP_ALIVE, event, stream
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.ledger import ThrottlingEvent
from fairserve.platform.db.names import names_of
from fairserve.platform.db.session import ReadSession
from fairserve.platform.tuning import events
from fairserve.platform.tuning.events import RejectionGroup
from fairserve.platform.tuning.schemas import EventOut, EventQuery

PAGE = ConsolePage("refusals", "Rejections", 50, "j")
router = APIRouter(prefix=PAGE.path)

POLL_INTERVAL_S = 2.0
GROUPED = timedelta(hours=1)
"""Period whose rejections are grouped."""


@router.get("")
def show(request: Request, viewer: AnyViewer, session: ReadSession) -> Response:
    """Show rejections, newest first; the first page of the list is live."""
    query = asked_in(request, viewer, EventQuery)
    found = events.page(session, query, tenant_id=query.tenant, app_id=query.app)
    given = {name: text for name, text in filters(request).items() if name != "offset"}
    groups = [] if given.keys() - {"tenant", "app"} else _groups(session, query)
    owners = {each.tenant for each in groups} if viewer.is_admin else set()
    apps = {each.app for each in groups} | {each.app for each in found.items}
    return page(
        request,
        viewer,
        "refusals",
        given=given,
        refusals=found.items,
        groups=groups,
        names=names_of(session, tenants=owners, apps=apps),
        seen=frozenset(each.call_id for each in found.items),
        part=part_of(found),
        place=place(request),
        stream=f"/console/refusals/stream?{urlencode(given)}" if not query.offset else None,
    )


@router.get("/stream")
def follow(request: Request, viewer: AnyViewer) -> Response:
    """Send the rows of the list when new ones exist."""
    query = asked_in(request, viewer, EventQuery)
    factory = request.app.state.session_factory

    def rows(shown: frozenset[str]) -> tuple[str, frozenset[str]] | None:
        with factory() as session:
            statement = events.rows(query, tenant_id=query.tenant, app_id=query.app)
            newest = read_only(session).scalar(
                statement.with_only_columns(ThrottlingEvent.call_id).limit(1)
            )
            if newest is None or newest in shown:
                return None
            items = events.listed(session, query, tenant_id=query.tenant, app_id=query.app)
            text = render(
                "refusal_rows",
                viewer=viewer,
                refusals=items,
                names=_names(session, items),
                seen=shown,
            )
        return text, frozenset(each.call_id for each in items)

    async def pieces() -> AsyncIterator[bytes]:
        shown: frozenset[str] = frozenset()
        while True:
            found = None
            with suppress(OperationalError):  # the rows stay as they are while the database is away
                found = await asyncio.to_thread(rows, shown)
            if found is None:
                yield KEEP_ALIVE
            else:
                text, shown = found
                yield event("rows", text)
            await asyncio.sleep(POLL_INTERVAL_S)

    return stream(request, viewer, pieces)


@router.get("/{call_id}")
def explain(call_id: str, request: Request, viewer: AnyViewer, session: ReadSession) -> Response:
    """Show the explanation of a rejection, with the values that it was decided on."""
    currency = request.app.state.settings.tenancy.currency
    refusal = events.one(
        session, call_id, tenant_id=viewer.tenant_id, app_id=None, currency=currency
    )
    owners = [refusal.tenant] if viewer.is_admin else []
    names = names_of(session, tenants=owners, apps=[refusal.app])
    return page(request, viewer, "refusal", refusal=refusal, names=names)


def _groups(session: Session, query: EventQuery) -> list[RejectionGroup]:
    now = utc_now()
    return events.groups(session, query, now - GROUPED, now)


def _names(session: Session, refusals: Sequence[EventOut]) -> dict[str, str]:
    """Return the names of the apps."""
    return names_of(session, apps={each.app for each in refusals})
