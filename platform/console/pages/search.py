"""Search over names: tenants, apps, users and runs of the last half hour, and workers."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from fastapi import APIRouter, Request
from sqlalchemy.exc import OperationalError
from starlette.responses import Response

from fairserve.interactions.tracking.identity import client_run_id
from fairserve.platform.console.formats import part
from fairserve.platform.console.guard import AnyViewer
from fairserve.platform.console.lists import asked
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.names import owners_named
from fairserve.platform.db.schemas import NamePart, Strict

router = APIRouter(prefix="/console/search")

MOST_OF_A_KIND = 5
LATEST_RUNS = 500
"""Runs in progress that a search looks through, the latest first."""


class SearchQuery(Strict):
    """Part of a name or id."""

    query: NamePart = ""


class Hit(NamedTuple):
    """A found object with the path of its page."""

    kind: str
    name: str
    place: str
    id: str = ""
    """Id of a tenant or an app, by which lists are filtered."""


@router.get("")
async def show(request: Request, viewer: AnyViewer) -> Response:
    """Return what matches, at most five of each kind; names need the database."""
    text = asked(request, SearchQuery).query.strip()
    hits: list[Hit] = []
    if text:
        factory = request.app.state.session_factory
        hits = await asyncio.to_thread(_stored, factory, viewer, text)
        hits += await _in_memory(request, viewer, text)
    return page(request, viewer, "search_results", hits=hits, text=text)


def _stored(factory: SessionFactory, viewer: Viewer, text: str) -> list[Hit]:
    """Return tenants and apps; none while the database does not answer."""
    try:
        with factory() as session:
            found = owners_named(read_only(session), text, viewer.tenant_id, MOST_OF_A_KIND)
            return [
                Hit(kind, name, f"/console/clients/{kind}s/{part(row_id)}", row_id)
                for kind, row_id, name in found
            ]
    except OperationalError:
        return []


async def _in_memory(request: Request, viewer: Viewer, text: str) -> list[Hit]:
    """Return users, runs in progress, and workers."""
    state, word, tenant = request.app.state, text.casefold(), viewer.tenant_id
    reading = await state.clients.read(tenant)
    users = [
        Hit("user", each.user, _place("clients", each.tenant, each.app, each.user))
        for each in reading.page(limit=MOST_OF_A_KIND, query=text).items
    ]
    live = [
        (each, client_run_id(each.app, each.interaction_id))
        for each in await state.control.runs(tenant, None, LATEST_RUNS)
    ]
    runs = [
        Hit("run", run_id, _place("interactions", each.tenant, each.app, run_id))
        for each, run_id in live
        if word in run_id.casefold()
    ]
    workers = [
        Hit("worker", each.worker_id, f"/console/cluster?worker={part(each.worker_id)}")
        for each in (state.fleet.pool.members() if viewer.is_admin else ())
        if word in each.worker_id.casefold()
    ]
    return [hit for hits in (users, runs, workers) for hit in hits[:MOST_OF_A_KIND]]


def _place(*parts: str) -> str:
    return "/".join(("/console", *map(part, parts)))
