"""Page of one run: when its calls waited and ran, its live graph, its usage, and its cancellation.

While the database is away it has the state of a live run and its calls in progress, which are in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from sqlalchemy.exc import OperationalError
from starlette.responses import RedirectResponse, Response

from fairserve.interactions.tracking.identity import core_run_id
from fairserve.platform.console.formats import part
from fairserve.platform.console.guard import AnyViewer, OwnForm, not_there, scoped
from fairserve.platform.console.lists import ListPart
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.streams import KEEP_ALIVE, event, latest, stream
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.identity import App
from fairserve.platform.db.session import DatabaseUnavailableError
from fairserve.platform.serving.interactions.drawing import draw
from fairserve.platform.serving.interactions.graph_view import MAX_NODES, GraphOut, NodeOut
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
PER_PAGE = 50
"""Calls of a page of the table."""
BAR = 1000.0
"""Width of a bar in its own units: that of the run's span."""
LEAST_BAR = 3.0
"""Width by which a call that ran for a moment is seen."""


class TimeBar(NamedTuple):
    """The time of a call in its run, in units of :data:`BAR`."""

    node: NodeOut
    begin: float
    waited: float
    ran: float


def time_bars(graph: GraphOut) -> list[TimeBar]:
    """Return the bars of the calls that took time, in their order."""
    bars = []
    for node in graph.nodes:
        if node.begin_s is not None and node.duration_s is not None and graph.span_s:
            unit = BAR / graph.span_s
            ran_s = max(0.0, node.duration_s - node.waited_s)
            ran = max(LEAST_BAR, ran_s * unit) if ran_s else 0.0
            bars.append(TimeBar(node, node.begin_s * unit, node.waited_s * unit, ran))
    return bars


class SeenRun(NamedTuple):
    """A run with those of its calls that are drawn."""

    run: InteractionOut
    graph: GraphOut
    held: bool
    """True if it waits for memory."""
    whole: bool
    """False while the database, which has the ended calls, is away."""

    @property
    def final(self) -> bool:
        """Return whether it has ended, and all of it is known."""
        return self.whole and self.run.ended_at is not None


class RunPath(NamedTuple):
    """The run that a URL names, and the page of its calls."""

    tenant: str
    app: str
    run: str
    offset: int = 0
    """Number of calls before the page."""

    @property
    def own(self) -> str:
        """Return the end of the page's path."""
        return "/".join(map(part, self[:3]))

    @property
    def core_id(self) -> str:
        """Return control's id of the run."""
        return core_run_id(self.app, self.run)


def _path(
    tenant_id: str,
    app_id: str,
    run_id: str,
    offset: Annotated[int, Query(ge=0, le=MAX_CALLS)] = 0,
) -> RunPath:
    return RunPath(tenant_id, app_id, run_id, offset)


Path = Annotated[RunPath, Depends(_path)]


def _runs(path: Path, viewer: AnyViewer, request: Request) -> Interactions:
    """Return the runs of one of the viewer's apps; operators have access to all apps."""
    scoped(viewer, path.tenant, request)
    state = request.app.state
    with state.session_factory() as session:
        app = read_only(session).get(App, path.app)
    if app is None or app.tenant_id != path.tenant:
        raise not_there(request)
    return Interactions(state.runs, path.tenant, path.app)


def _shown_runs(path: Path, viewer: AnyViewer, request: Request) -> Interactions:
    """Return the same to read them, also while the database, which knows whose app it is, is away."""
    try:
        return _runs(path, viewer, request)
    except OperationalError:
        return Interactions(request.app.state.runs, path.tenant, path.app)


Runs = Annotated[Interactions, Depends(_runs)]
ShownRuns = Annotated[Interactions, Depends(_shown_runs)]


@router.get(f"/stream/{OF_RUN}")
async def follow(path: Path, request: Request, viewer: AnyViewer, runs: ShownRuns) -> Response:
    """Send the page's live part when it changes, until the run has ended."""
    control: ControlService = request.app.state.control
    await _read(control, runs, path)

    async def pieces() -> AsyncIterator[bytes]:
        sharer, shown = viewer.principal.sharer, ""
        with latest(partial(control.follow_run, path.core_id, sharer=sharer)) as updates:
            while True:
                began_s = time.monotonic()
                seen = await _read(control, runs, path)
                text = await asyncio.to_thread(_part, request, viewer, path, seen)
                yield event("run", text) if text != shown else KEEP_ALIVE
                shown = text
                if seen is not None and seen.final:
                    yield event("ended", "")
                    return
                await asyncio.sleep(max(REDRAW_S, REST * (time.monotonic() - began_s)))
                while await updates.next(POLL_INTERVAL_S) is None:
                    yield KEEP_ALIVE
                    if seen is None or not seen.whole:
                        break  # the database may answer again

    return stream(request, viewer, pieces)


@router.post(f"/cancel/{OF_RUN}")
async def cancel(
    path: Path, request: Request, viewer: AnyViewer, form: OwnForm, runs: Runs
) -> Response:
    """Cancel the run with all its calls."""
    if viewer.is_admin:
        await cancel_for_operator(request.app.state.runs, viewer.principal, path.app, path.run)
    else:
        await runs.cancel(path.run)
    return RedirectResponse(f"/console/interactions/{path.own}?done=cancelled", status_code=303)


@router.get(f"/{OF_RUN}")
async def show(path: Path, request: Request, viewer: AnyViewer, runs: ShownRuns) -> Response:
    """Show the run, and a page of its calls."""
    state = request.app.state
    seen = await _read(state.control, runs, path)
    console: ConsoleState = state.console

    def draw_page() -> Response:
        names: Mapping[str, str] = {}
        if seen is not None:  # else nothing shows that the app is the tenant's
            sharer = viewer.principal.sharer
            names = console.names.read(state.session_factory, sharer, apps=[path.app])
        app_name = names.get(path.app, path.app)
        values = _values(request, path, seen)
        return page(request, viewer, "run", app_name=app_name, **values)

    return await asyncio.to_thread(draw_page)


async def _read(control: ControlService, runs: Interactions, path: RunPath) -> SeenRun | None:
    """Return the run with the part of its graph beside a page of calls.

    None if the database is away and nothing of it is in memory.
    """
    held = bool(control.held_runs([path.core_id]))
    first = path.offset - path.offset % MAX_NODES
    try:
        graph = await runs.graph(path.run, offset=first)
        return SeenRun(await runs.get(path.run), graph, held, whole=True)
    except DatabaseUnavailableError:
        found = await runs.from_memory(path.run, offset=first)
        return None if found is None else SeenRun(*found, held, whole=False)


def _part(request: Request, viewer: Viewer, path: RunPath, seen: SeenRun | None) -> str:
    return render("run_part", viewer=viewer, **_values(request, path, seen))


def _values(request: Request, path: RunPath, seen: SeenRun | None) -> dict[str, Any]:
    values: dict[str, Any] = {"path_of_run": path, "seen": seen}
    if seen is None:
        return values
    graph, offset = seen.graph, path.offset
    picture = draw(graph)
    rows = graph.nodes[offset - graph.offset :][:PER_PAGE]
    end = offset + len(rows)
    return {
        **values,
        "bars": time_bars(graph),
        "lasted_s": ((seen.run.ended_at or utc_now()) - seen.run.opened_at).total_seconds(),
        "rows": rows,
        "calls": ListPart(offset, PER_PAGE, len(rows), graph.total, end < graph.total),
        "place": f"/console/interactions/{path.own}?",
        "money_unit": request.app.state.settings.tenancy.currency,
        # The library escapes all texts.
        "picture": Markup(picture[picture.index("<svg") :]),  # noqa: S704
    }
