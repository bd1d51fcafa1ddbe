"""Overview page: live load, service, rejections and alarms of the last minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from fairserve.platform.background.jobs.schemas import JobOut
from fairserve.platform.background.jobs.service import jobs_out
from fairserve.platform.console import charts, live_charts
from fairserve.platform.console.alarms import Alarm, Health, alarms
from fairserve.platform.console.charts import Chart
from fairserve.platform.console.guard import AnyViewer
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.streams import KEEP_ALIVE, event, latest, stream
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.names import names_of
from fairserve.platform.fleet.fleet_view import cluster_out
from fairserve.platform.monitoring.activity import BUCKET_S
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.history import History
from fairserve.platform.monitoring.live_snapshot import LiveSnapshot

PAGE = ConsolePage("overview", "Overview", 1)
router = APIRouter(prefix=PAGE.path)

Minutes = Annotated[int, Query(ge=1, le=30)]
CLIENTS_LOOKED_AT = 10
WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Overview:
    """Contents of the page at one time."""

    live: LiveSnapshot
    charts: dict[str, Chart]
    alarms: list[Alarm]
    now: dict[str, Any] = field(default_factory=dict)
    """Figures at the top of the page."""


@router.get("")
async def show(request: Request, viewer: AnyViewer, minutes: Minutes = 10) -> Response:
    """Show the page."""
    seen = await _read(request, viewer, minutes)
    return page(
        request,
        viewer,
        "overview",
        minutes=minutes,
        alarms=seen.alarms,
        now=seen.now,
        charts=seen.charts,
        is_admin=viewer.is_admin,
    )


@router.get("/stream")
async def follow(request: Request, viewer: AnyViewer, minutes: Minutes = 10) -> Response:
    """Send the page's contents with each new sample."""
    history: History = request.app.state.history
    console: ConsoleState = request.app.state.console

    async def make() -> bytes:
        seen = await _read(request, viewer, minutes)
        text = render("overview_part", alarms=seen.alarms, now=seen.now, is_admin=viewer.is_admin)
        return event("charts", orjson.dumps(seen.charts)) + event("part", text)

    async def pieces() -> AsyncIterator[bytes]:
        key = (viewer.is_admin, viewer.tenant_id, minutes)
        with latest(history.subscribe) as updates:
            while True:
                sample = await updates.next(WAIT_S)
                if sample is None:
                    yield KEEP_ALIVE
                else:
                    yield await console.overviews.get(sample.number, key, make)

    return stream(request, viewer, pieces)


async def _read(request: Request, viewer: Viewer, minutes: int) -> Overview:
    state = request.app.state
    history: History = state.history
    tenant = viewer.tenant_id
    live = history.snapshot(tenant, buckets=round(minutes * 60 / BUCKET_S))
    clients: Clients = state.clients
    busiest = clients.page(tenant, limit=CLIENTS_LOOKED_AT)
    names, jobs = await asyncio.to_thread(_stored, request, live, viewer.is_admin)
    health = Health(live=live, clients=busiest.items, draining=state.draining.is_set())
    if viewer.is_admin:
        cluster = await cluster_out(state.fleet)
        file = cluster["fleet_file"] or {}
        waits_since_s = state.ledger.waits_since_s
        health = Health(
            live=live,
            members=state.fleet.pool.members(),
            clients=busiest.items,
            jobs=jobs,
            models_without_worker=[m["model"] for m in cluster["models"] if not m["workers_up"]],
            fleet_problem=file.get("problem") or "",
            ledger_waits_s=None if waits_since_s is None else time.monotonic() - waits_since_s,
            rejected_rows=state.ledger.rejected_rows,
            draining=state.draining.is_set(),
        )
    return Overview(live, _charts(live, names), alarms(health), _now(live))


def _stored(
    request: Request, live: LiveSnapshot, with_jobs: bool
) -> tuple[dict[str, str], list[JobOut]]:
    """Return the names of the visible apps and the states of background jobs."""
    with request.app.state.session_factory() as session:
        read_only(session)
        names = names_of(session, apps={each.app for each in live.clients})
        return names, jobs_out(session, request.app.state.settings).items if with_jobs else []


def _charts(live: LiveSnapshot, names: dict[str, str]) -> dict[str, Chart]:
    found = charts.of_overview(live, names)
    found["refusals"] = live_charts.rejections_chart(live)
    if live.cluster is not None:
        found["load"] = live_charts.load_chart(live)
    return found


def _now(live: LiveSnapshot) -> dict[str, Any]:
    """Return the figures of the last minute and the last sample."""
    activity, cluster = live.activity, live.cluster
    minute = round(60 / live.bucket_s)

    def over(values: list[float | None]) -> float:
        return sum(each or 0.0 for each in values[-minute:])

    def last(values: list[float | None]) -> float | None:
        return values[-1] if values else None

    prompts = over(activity.prompt_tokens)
    waits = [each for each in activity.queue_p99_s[-minute:] if each is not None]
    capacity = last(cluster.capacity_tokens) if cluster else None
    demand = last(cluster.demand_tokens) if cluster else None
    return {
        "load": demand / capacity if demand is not None and capacity else None,
        "overloaded": bool(live.overloaded and live.overloaded[-1]),
        "running": last(activity.running_calls),
        "waiting": last(activity.queued_calls),
        "runs": last(cluster.live_interactions) if cluster else None,
        "service": over(activity.service) / (minute * live.bucket_s),
        "jain": live.minute_jain_index,
        "refused": sum(over(each) for each in activity.refused.values()),
        "accepted": over(activity.accepted),
        "hits": over(activity.cached_tokens) / prompts if prompts else None,
        "wait": max(waits, default=None),
        "clients": last(activity.clients),
    }
