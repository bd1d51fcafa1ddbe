"""Page of one run: its usage, its live graph, and its cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from fairserve.interactions.tracking.identity import core_run_id
from fairserve.platform.console.formats import part
from fairserve.platform.console.guard import AnyViewer, OwnForm, not_there, scoped
from fairserve.platform.console.lists import ListPart
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.streams import KEEP_ALIVE, event, latest, stream
from fairserve.platform.control.port import ControlPort
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.identity import App
from fairserve.platform.db.names import names_of
from fairserve.platform.db.session import DatabaseUnavailableError
from fairserve.platform.serving.interactions.drawing import draw
from fairserve.platform.serving.interactions.graph_view import GraphOut, NodeOut
from fairserve.platform.serving.interactions.repository import MAX_CALLS
from fairserve.platform.serving.interactions.schemas import InteractionOut
from fairserve.platform.serving.interactions.service import (
    Interactions,
    cancel_for_operator,
)

router = APIRouter(prefix="/console/interactions")

OF_RUN = "{tenant_id}/{app_id}/{run_id:path}"
"""Rest of a path, because a run's id may contain slashes."""

POLL_INTERVAL_S = 2.0
REDRAW_S = 1.0
"""Minimum seconds between two drawings of a run."""
REST = 9.0
"""Pause after the drawing of a run, as a multiple of its duration."""
DRAWN = 500
"""Calls that a drawing shows: the page of the table is among them."""
PER_PAGE = 50
"""Calls of a page of the table."""
BAR = 1000.0
"""Width of a bar in its own units: that of the run's span."""
LEAST_BAR = 3.0
"""Width by which a call that ran for a moment is seen."""


class TimeBar(NamedTuple):
    """The time of a call in its run, in units of :data:`BAR`."""

    begin: float
    waited: float
    ran: float


def time_bar(node: NodeOut, span_s: float) -> TimeBar | None:
    """Return the bar of a call; None for a node without one, and where the run took no time."""
    if node.begin_s is None or node.duration_s is None or not span_s:
        return None
    unit = BAR / span_s
    ran_s = max(0.0, node.duration_s - node.waited_s)
    ran = max(LEAST_BAR, ran_s * unit) if ran_s else 0.0
    return TimeBar(node.begin_s * unit, node.waited_s * unit, ran)


def _runs(tenant_id: str, app_id: str, viewer: AnyViewer, request: Request) -> Interactions:
    """Return the runs of one of the viewer's apps; operators have access to all apps."""
    scoped(viewer, tenant_id, request)
    state = request.app.state
    with state.session_factory() as session:
        app = read_only(session).get(App, app_id)
    if app is None or app.tenant_id != tenant_id:
        raise not_there(request)
    return Interactions(state.runs, tenant_id, app_id)


Runs = Annotated[Interactions, Depends(_runs)]
Offset = Annotated[int, Query(ge=0, le=MAX_CALLS)]
"""Number of calls before the page."""


@router.get(f"/stream/{OF_RUN}")
async def follow(
    tenant_id: str,
    app_id: str,
    run_id: str,
    request: Request,
    viewer: AnyViewer,
    runs: Runs,
    offset: Offset = 0,
) -> Response:
    """Send the page's live part when it changes, until the run has ended."""
    control: ControlPort = request.app.state.control
    await runs.get(run_id)

    async def pieces() -> AsyncIterator[bytes]:
        core_id, sharer = core_run_id(app_id, run_id), viewer.principal.sharer
        with latest(partial(control.follow_run, core_id, sharer=sharer)) as updates:
            while True:
                began_s = time.monotonic()
                try:
                    run = await runs.get(run_id)
                    graph = await _graph(runs, run_id, offset)
                except DatabaseUnavailableError:
                    yield KEEP_ALIVE
                    await asyncio.sleep(POLL_INTERVAL_S)
                    continue
                text = await asyncio.to_thread(_part, viewer, tenant_id, app_id, run, graph, offset)
                yield event("run", text)
                if run.ended_at is not None:
                    yield event("ended", "")
                    return
                await asyncio.sleep(max(REDRAW_S, REST * (time.monotonic() - began_s)))
                while await updates.next(POLL_INTERVAL_S) is None:
                    yield KEEP_ALIVE

    return stream(request, viewer, pieces)


@router.post(f"/cancel/{OF_RUN}")
async def cancel(
    tenant_id: str,
    app_id: str,
    run_id: str,
    request: Request,
    viewer: AnyViewer,
    form: OwnForm,
    runs: Runs,
) -> Response:
    """Cancel the run with all its calls."""
    if viewer.is_admin:
        await cancel_for_operator(request.app.state.runs, viewer.principal, app_id, run_id)
    else:
        await runs.cancel(run_id)
    own = f"/console/interactions/{_own(tenant_id, app_id, run_id)}"
    return RedirectResponse(f"{own}?done=cancelled", status_code=303)


@router.get(f"/{OF_RUN}")
async def show(
    tenant_id: str,
    app_id: str,
    run_id: str,
    request: Request,
    viewer: AnyViewer,
    runs: Runs,
    offset: Offset = 0,
) -> Response:
    """Show the run, and a page of its calls."""
    run = await runs.get(run_id)
    graph = await _graph(runs, run_id, offset)

    def draw_page() -> Response:
        values = _values(tenant_id, app_id, run, graph, offset)
        with request.app.state.session_factory() as session:
            names = names_of(read_only(session), apps=[app_id])
        return page(
            request,
            viewer,
            "run",
            own=_own(tenant_id, app_id, run_id),
            app_name=names.get(app_id, app_id),
            offset=offset,
            **values,
        )

    return await asyncio.to_thread(draw_page)


def _own(*ids: str) -> str:
    return "/".join(map(part, ids))


async def _graph(runs: Interactions, run_id: str, offset: int) -> GraphOut:
    """Return the part of the graph that is drawn beside a page of calls."""
    return await runs.graph(run_id, limit=DRAWN, offset=offset - offset % DRAWN)


def _part(
    viewer: Viewer,
    tenant_id: str,
    app_id: str,
    run: InteractionOut,
    graph: GraphOut,
    offset: int,
) -> str:
    return render("run_part", viewer=viewer, **_values(tenant_id, app_id, run, graph, offset))


def _values(
    tenant_id: str, app_id: str, run: InteractionOut, graph: GraphOut, offset: int
) -> dict[str, Any]:
    picture = draw(graph)
    first = offset - graph.offset
    shown = graph.nodes[first : first + PER_PAGE]
    return {
        "tenant_id": tenant_id,
        "app_id": app_id,
        "run": run,
        "graph": graph,
        "rows": [(node, time_bar(node, graph.span_s)) for node in shown],
        "calls": ListPart(
            offset, PER_PAGE, len(shown), graph.total, offset + len(shown) < graph.total
        ),
        "place": f"/console/interactions/{_own(tenant_id, app_id, run.id)}?",
        # The library escapes all texts.
        "picture": Markup(picture[picture.index("<svg") :]),  # noqa: S704
    }
