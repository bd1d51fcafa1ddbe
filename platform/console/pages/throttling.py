"""Page of the throttling settings: values in force, changes with a preview, and versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.platform.base.errors import ConflictError, FairServeError, InvalidRequestError
from fairserve.platform.console import throttling_view as view
from fairserve.platform.console.charts import Chart
from fairserve.platform.console.guard import AdminViewer, Form, OwnForm, acting_for
from fairserve.platform.console.lists import asked
from fairserve.platform.console.live_charts import chart_events, load_chart, rejections_chart
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.streams import stream
from fairserve.platform.console.throttling_form import ParameterForm, differences, parameter_form
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tuning.preview.schemas import PreviewIn
from fairserve.platform.tuning.preview.service import Previews
from fairserve.platform.tuning.schemas import ThrottlingPut
from fairserve.platform.tuning.service import Current, change_and_apply, load_current

PAGE = ConsolePage(
    "throttling", "Settings", 80, "s", only_admin=True, within="settings", tab="Throttling"
)
router = APIRouter(prefix=PAGE.path)

SHOWN_BUCKETS = 120
"""Buckets of ten minutes."""


def _draw(request: Request) -> dict[str, Chart]:
    snapshot = request.app.state.history.snapshot(clients=0, buckets=SHOWN_BUCKETS)
    return {"load": load_chart(snapshot), "refusals": rejections_chart(snapshot)}


async def _charts(viewer: AdminViewer, request: Request) -> dict[str, Chart]:
    return _draw(request)  # on the event loop, which owns the history


Charts = Annotated[dict[str, Chart], Depends(_charts)]


@router.get("")
def show(
    request: Request, viewer: AdminViewer, session: ReadSession, live: Charts, done: str = ""
) -> Response:
    """Show the settings in force, or the parameters of the selected system."""
    query = asked(request, view.ThrottlingPageQuery)
    current = load_current(session, request.app.state.settings.tuning)
    try:
        found = parameter_form(
            request.app.state.settings.tuning, current, query.chosen() or current.system
        )
    except ValueError as error:
        wrong = InvalidRequestError(str(error), param="system")
        return _page(request, viewer, session, live, problem=wrong)
    changed = done in ("throttling", "reverted")
    return _page(request, viewer, session, live, shown=found, offset=query.offset, changed=changed)


@router.get("/stream")
async def follow(request: Request, viewer: AdminViewer) -> Response:
    """Send the charts of load and rejections."""

    def pieces() -> AsyncIterator[bytes]:
        return chart_events(request.app.state.history, lambda: _draw(request))

    return stream(request, viewer, pieces)


@router.post("")
def apply(
    request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession, live: Charts
) -> Response:
    """Apply the settings of the form."""
    settings = request.app.state.settings.tuning
    current = load_current(session, settings)
    shown, problem = _read(request, current, form)
    if problem is None and shown is not None:
        body = ThrottlingPut(
            system=shown.system,
            parameters=dict(shown.parameters),
            expected_version=view.version_of(form),
        )
        same = (current.system, current.parameters) == (body.system, body.parameters)
        try:
            if same and body.expected_version == current.version:
                return _page(request, viewer, session, live, shown=shown, same=True)
            _change(session, viewer, request, body)
            return RedirectResponse(f"{PAGE.path}?done=throttling", status_code=303)
        except (ConflictError, InvalidRequestError) as error:
            problem = error
    return _page(request, viewer, session, live, shown=shown, problem=problem, form=form)


@router.post("/preview")
async def preview(request: Request, viewer: AdminViewer, form: OwnForm, live: Charts) -> Response:
    """Show a replay of the last minutes with the form's settings; stores nothing."""

    def read() -> tuple[Current, ParameterForm | None, FairServeError | None]:
        with request.app.state.session_factory() as session:
            current = load_current(read_only(session), request.app.state.settings.tuning)
        return current, *_read(request, current, form)

    current, shown, problem = await asyncio.to_thread(read)
    values: dict[str, Any] = {}
    if problem is None and shown is not None:
        try:
            body = PreviewIn(
                system=shown.system,
                parameters=dict(shown.parameters),
                minutes=view.minutes_of(form),
            )
            previews: Previews = request.app.state.preview
            seen = await previews.make(body, request.is_disconnected)
            proposed = (body.system, body.parameters)
            values = {
                "preview": seen,
                "figures": view.figures(seen),
                "fidelity": view.fidelity(seen),
                "proposed": differences((current.system, current.parameters), proposed),
            }
        except FairServeError as error:
            values = {"preview_problem": error, "status": error.status}
        if "hx-request" in request.headers and "again" not in form:
            return page(request, viewer, "throttling_preview", **{**view.NO_PREVIEW, **values})

    def whole() -> Response:
        with request.app.state.session_factory() as session:
            return _page(
                request,
                viewer,
                read_only(session),
                live,
                shown=shown,
                problem=problem,
                form=form,
                **values,
            )

    return await asyncio.to_thread(whole)


@router.post("/revert")
def revert(
    request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession, live: Charts
) -> Response:
    """Apply an earlier version as a new one."""
    system, parameters = view.version(
        session, request.app.state.settings.tuning, view.version_of(form, "to")
    )
    body = ThrottlingPut(
        system=system, parameters=dict(parameters), expected_version=view.version_of(form)
    )
    try:
        _change(session, viewer, request, body)
    except (ConflictError, InvalidRequestError) as error:
        return _page(request, viewer, session, live, problem=error, form=form)
    return RedirectResponse(f"{PAGE.path}?done=reverted", status_code=303)


def _change(session: Session, viewer: Viewer, request: Request, body: ThrottlingPut) -> None:
    """Store a change and apply it. Raises ConflictError or InvalidRequestError."""
    state = request.app.state
    change_and_apply(session, acting_for(viewer), state.settings.tuning, state.control, body)


def _read(
    request: Request, current: Current, form: Form
) -> tuple[ParameterForm | None, FairServeError | None]:
    """Return the form's parameters, and its error if there is one."""
    system = form.get("system", "") or current.system
    try:
        found = parameter_form(request.app.state.settings.tuning, current, system, form)
    except ValueError as error:
        return None, InvalidRequestError(str(error), param="system")
    if not found.problems:
        return found, None
    names = ", ".join(field.name for field in found.problems)
    return found, InvalidRequestError(f"nothing was changed: correct {names}", param="parameters")


def _page(
    request: Request,
    viewer: Viewer,
    session: Session,
    live: dict[str, Chart],
    *,
    shown: ParameterForm | None = None,
    problem: FairServeError | None = None,
    form: Form | None = None,
    status: int | None = None,
    **more: Any,
) -> Response:
    """Return the page; for an invalid form sent by a script, only the form."""
    settings = request.app.state.settings.tuning
    values = view.values(session, settings, shown, problem, form, **more)
    status = status or (200 if problem is None else problem.status)
    if "hx-request" in request.headers and request.method == "POST":
        answer = page(request, viewer, "throttling_settings", status=status, **values)
        to = " show:#preview:top" if status == 200 else ""
        answer.headers.update({"HX-Retarget": "#settings", "HX-Reswap": f"outerHTML{to}"})
        return answer
    return page(request, viewer, "throttling", status=status, charts=live, **values)
