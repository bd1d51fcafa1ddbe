"""Now page: what is wrong and what to do, the tenants, worst first, and the last minutes as charts.

Everything on it is in memory, except for names, what is spent, and the first steps of an empty
installation, so that it holds while the database is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from sqlalchemy.exc import OperationalError
from starlette.responses import Response

from fairserve.platform.background.alarms.recent import RecentChange
from fairserve.platform.background.alarms.schemas import AlarmOut, alarm_out
from fairserve.platform.background.alarms.watch import AlarmWatch
from fairserve.platform.console.charts import Chart
from fairserve.platform.console.first_steps import FirstSteps, first_steps
from fairserve.platform.console.guard import AnyViewer
from fairserve.platform.console.incidents import NAMED, Incidents, incidents
from fairserve.platform.console.lists import ListPart
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.streams import KEEP_ALIVE, event, latest, stream
from fairserve.platform.console.tenant_rows import (
    ROWS,
    TenantRow,
    health_of,
    scale_of,
    tenant_row,
    worst_first,
)
from fairserve.platform.console.timeline import latest_marks, marks_of, timeline
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import read_only
from fairserve.platform.monitoring.activity import BUCKET_S
from fairserve.platform.monitoring.activity_bucket import ClosedBucket
from fairserve.platform.monitoring.app_calls import MEANT
from fairserve.platform.monitoring.history import History
from fairserve.platform.monitoring.live_snapshot import LiveSnapshot, Series
from fairserve.platform.monitoring.tenant_calls import CallGroup, TenantCalls, service_of
from fairserve.platform.reporting.usage.spending import spent_on_day

PAGE = ConsolePage("overview", "Now", 10, "n")
router = APIRouter(prefix=PAGE.path)

WAIT_S = 2.0
MINUTE = round(60 / BUCKET_S)
"""Buckets of the last minute."""


class NowQuery(BaseModel):
    """The shown time and the first row of the table."""

    minutes: int = Field(default=10, ge=1, le=30)
    offset: int = Field(default=0, ge=0, le=1_000_000)

    @property
    def place(self) -> str:
        """Return the address of the page, to which ``&offset=`` can be appended."""
        return f"{PAGE.path}?minutes={self.minutes}"


def page_of(form: Mapping[str, str], page: ConsolePage) -> ConsolePage:
    """Return the page that a form was sent from: this one if its button has ``page`` now."""
    return PAGE if form.get("page") == "now" else page


Asked = Annotated[NowQuery, Query()]


@dataclass(frozen=True, slots=True)
class Observed:
    """State of the process at one time, as the viewer may see it."""

    live: LiveSnapshot
    alarms: Sequence[AlarmOut]
    resolved: Sequence[AlarmOut]
    changes: Sequence[RecentChange]
    groups: Mapping[str, CallGroup]
    """Calls by tenant; for a tenant by app."""
    buckets: Sequence[ClosedBucket | None]
    """Buckets of the activity at the times of ``live``."""


@dataclass(frozen=True, slots=True)
class Now:
    """Contents of the page."""

    figures: Mapping[str, Any]
    incidents: Incidents
    tenants: Sequence[TenantRow]
    part: ListPart
    charts: Mapping[str, Chart]
    steps: FirstSteps | None
    """First steps of an operator; None if they are done or not known."""


@router.get("")
async def show(request: Request, viewer: AnyViewer, query: Asked) -> Response:
    """Show the page."""
    now = await _read(request, viewer, query)
    return page(
        request,
        viewer,
        "overview",
        minutes=query.minutes,
        stream=f"{PAGE.path}/stream?{urlencode(query.model_dump())}",
        charts=now.charts,
        **_part(request, query, now, _url(request)),
    )


@router.get("/stream")
async def follow(request: Request, viewer: AnyViewer, query: Asked) -> Response:
    """Send the page's contents with each new sample."""
    history: History = request.app.state.history
    console: ConsoleState = request.app.state.console
    watch: AlarmWatch = request.app.state.alarms
    url = _url(request)

    async def make() -> bytes:
        now = await _read(request, viewer, query)
        part = _part(request, query, now, url)
        text = await asyncio.to_thread(render, "overview_part", is_admin=viewer.is_admin, **part)
        return event("charts", orjson.dumps(now.charts)) + event("part", text)

    async def pieces() -> AsyncIterator[bytes]:
        shown: Hashable = None
        with latest(history.subscribe) as updates:
            yield await make()
            while True:
                sample = await updates.next(WAIT_S)
                last, states = history.last, watch.states()  # which follow a little later
                if last is None or (sample is None and states == shown):
                    yield KEEP_ALIVE
                else:
                    shown = states
                    asked = (query.minutes, query.offset)
                    key = (viewer.principal.role, viewer.tenant_id, asked, states, url)
                    yield await console.overviews.get(last.number, key, make)

    return stream(request, viewer, pieces)


def _url(request: Request) -> str:
    """Return the URL of the API, as the browser knows it unless it is configured."""
    return request.app.state.settings.console.public_url or str(request.base_url).rstrip("/")


def _part(request: Request, query: NowQuery, now: Now, url: str) -> dict[str, Any]:
    served = request.app.state.models.ready()
    return {
        "figures": now.figures,
        "incidents": now.incidents,
        "tenants": now.tenants,
        "scale": scale_of(now.tenants),
        "part": now.part,
        "place": query.place,
        "draining": request.app.state.draining.is_set(),
        "steps": now.steps,
        "url": url,
        "money_unit": request.app.state.settings.tenancy.currency,
        "model": served[0] if served else "MODEL",
    }


async def _read(request: Request, viewer: Viewer, query: NowQuery) -> Now:
    state, tenant = request.app.state, viewer.tenant_id
    history: History = state.history
    watch: AlarmWatch = state.alarms
    calls: TenantCalls = state.tenant_calls
    groups = await calls.read(tenant)
    live = history.snapshot(tenant, buckets=round(query.minutes * 60 / BUCKET_S), clients=0)
    resolved = [each for each in watch.recent.resolved if tenant in (None, *each.tenants)]
    seen = Observed(
        live=live,
        alarms=[alarm_out(each, tenant) for each in watch.current(tenant)],
        resolved=[alarm_out(each, tenant) for each in resolved],
        changes=watch.recent.changes,
        groups=groups,
        buckets=calls.buckets(len(live.at)),
    )
    return await asyncio.to_thread(_now, request, viewer, query, seen)


def _now(request: Request, viewer: Viewer, query: NowQuery, seen: Observed) -> Now:
    tenant = viewer.tenant_id
    health = health_of(seen.groups, seen.alarms, tenant)
    ranked = worst_first(seen.groups, health)
    shown = ranked[query.offset : query.offset + ROWS]
    names = _names(request, viewer, seen, shown)
    service = service_of(seen.buckets, tenant, shown)
    spent = _spent(request, tenant, shown)
    rows = [
        tenant_row(
            each,
            names.get(each, each),
            seen.groups.get(each),
            health[each],
            service[each],
            spent,
            tenant,
        )
        for each in shown
    ]
    end = query.offset + len(shown)
    started = request.app.state.status.now().started
    marks = marks_of(seen.alarms, seen.resolved, seen.changes, started, names, tenant)
    last = seen.live.at[-1] if seen.live.at else started
    return Now(
        figures=_figures(seen.live, seen.groups.values()),
        incidents=incidents(seen.alarms, names, viewer),
        tenants=rows,
        part=ListPart(query.offset, ROWS, len(rows), len(ranked), end < len(ranked)),
        charts=timeline(seen.live, latest_marks(marks, last - 60 * query.minutes)),
        steps=_steps(request, viewer),
    )


def _names(
    request: Request, viewer: Viewer, seen: Observed, groups: Sequence[str]
) -> dict[str, str]:
    """Return the names of the tenants and apps on the page; without the database the last known ones."""
    alarms = (*seen.alarms, *seen.resolved)
    affected = [each for alarm in alarms for each in alarm.affected[:NAMED]]
    changed = {each.target for each in seen.changes if viewer.tenant_id in (None, each.tenant)}
    tenants = {each.tenant for each in affected} | {each.tenant for each in alarms if each.tenant}
    apps = {each.app for each in affected} | {each.app for each in alarms if each.app}
    tenants, apps = tenants | changed, apps | changed
    if viewer.is_admin:
        tenants |= set(groups)
    else:
        apps |= set(groups)
    console: ConsoleState = request.app.state.console
    return console.names.read(
        request.app.state.session_factory, viewer.principal.sharer, tenants=tenants, apps=apps
    )


def _spent(request: Request, tenant: str | None, groups: Sequence[str]) -> Mapping[str, int] | None:
    """Return the nanounits spent today by tenants or apps; None while the database is away."""
    try:
        with request.app.state.session_factory() as session:
            return spent_on_day(read_only(session), tenant, groups, utc_now())
    except OperationalError:
        return None


def _steps(request: Request, viewer: Viewer) -> FirstSteps | None:
    """Return the first steps of an operator; None if they are done, or the database is away."""
    console: ConsoleState = request.app.state.console
    if not viewer.is_admin or console.set_up:
        return None
    try:
        with request.app.state.session_factory() as session:
            steps = first_steps(read_only(session))
    except OperationalError:
        return None
    console.set_up = steps.done
    return steps


def _figures(live: LiveSnapshot, groups: Iterable[CallGroup]) -> dict[str, Any]:
    """Return the figures of the last minute and the last sample."""
    activity = live.activity

    def over(values: Series) -> float:
        return sum(each or 0.0 for each in values[-MINUTE:])

    def last(values: Series) -> float | None:
        return values[-1] if values else None

    waits = [each.wait_s for each in groups if each.wait_s is not None]
    return {
        **_capacity(live),
        "running": last(activity.running_calls),
        "waiting": last(activity.queued_calls),
        "refused": sum(over(activity.refused[each]) for each in activity.refused.keys() - MEANT),
        "accepted": over(activity.accepted),
        "wait": max(waits, default=None),
    }


def _capacity(live: LiveSnapshot) -> dict[str, Any]:
    """Return what overload is decided by: the load of the fullest model, and how long calls wait.

    Each model is overloaded for itself; a sum over models would hide a full one among empty ones.
    """
    models = live.cluster.models.values() if live.cluster else ()
    loads, waits = [], []
    for model in models:
        demand, capacity = model.demand_tokens[-1], model.capacity_tokens[-1]
        if demand is not None and capacity:
            loads.append(demand / capacity)
        waits.append(model.expected_wait_s[-1] or 0.0)
    return {
        "load": max(loads, default=None),
        "expected_wait": max(waits, default=0.0),
        "overloaded": bool(live.overloaded and live.overloaded[-1]),
    }
