"""Page of models, workers and background jobs: load, health; workers and aliases are changed here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.platform.background.jobs.schemas import Jobs
from fairserve.platform.background.jobs.service import jobs_out, run_soon
from fairserve.platform.console import forms
from fairserve.platform.console.charts import hit_rates, of_workers
from fairserve.platform.console.guard import AdminViewer, OwnForm
from fairserve.platform.console.lists import ListPart, asked
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.pages.overview import page_of
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.streams import KEEP_ALIVE, event, stream
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.schemas import MAX_PAGE, Paging
from fairserve.platform.db.session import WriteSession
from fairserve.platform.fleet import changing
from fairserve.platform.fleet.fleet_view import aliases_page, cluster_out, workers_out
from fairserve.platform.fleet.parts import FleetParts
from fairserve.platform.fleet.schemas import AliasOut, AliasPut, ModelName, WorkerJoin
from fairserve.platform.fleet.service import FleetChanges
from fairserve.platform.fleet.worker_spec import WorkerKind
from fairserve.platform.monitoring.history import History
from fairserve.platform.monitoring.live_snapshot import WorkerSeries

PAGE = ConsolePage("cluster", "Fleet", 60, "f", only_admin=True)
router = APIRouter(prefix=PAGE.path)

POLL_INTERVAL_S = 2.0
POLLS_PER_JOBS = 5
"""Number of polls between updates of the jobs."""
WORKER, ALIAS = "worker.", "alias."
"""Beginnings of the fields' names in the forms of a new worker and of an alias."""
PER_PAGE = 6
"""Workers, and aliases, of a page."""


class FleetQuery(BaseModel):
    """The filter by a worker's id or model, and the first worker of the page."""

    worker: str = ""
    offset: int = Field(default=0, ge=0, le=1_000_000)


class NamedAlias(AliasPut):
    """The form of an alias."""

    name: ModelName


@router.get("")
async def show(request: Request, viewer: AdminViewer) -> Response:
    """Show the cluster, live."""
    return await _page(request, viewer)


async def _page(
    request: Request,
    viewer: Viewer,
    *,
    given: Mapping[str, str] = forms.NOTHING,
    wrong: forms.Wrong = forms.NOTHING,
) -> Response:
    query = asked(request, FleetQuery)
    times, series = _history(request, query)
    part = await _part_values(request, query, hit_rates(series))
    jobs = await asyncio.to_thread(_jobs, request)
    return await asyncio.to_thread(
        page,
        request,
        viewer,
        "cluster",
        status=400 if wrong else 200,
        worker=query.worker,
        stream=f"{PAGE.path}/stream?{request.url.query}",
        charts=of_workers(times, series),
        jobs=jobs,
        kinds=[(kind, kind) for kind in get_args(WorkerKind)],
        given=given,
        wrong=wrong,
        **part,
    )


@router.get("/stream")
async def follow(request: Request, viewer: AdminViewer) -> Response:
    """Send models and workers on changes, charts with each sample, and jobs periodically."""
    query = asked(request, FleetQuery)
    history: History = request.app.state.history

    async def pieces() -> AsyncIterator[bytes]:
        sampled = asyncio.Event()
        sampled.set()
        stop = history.subscribe(lambda _: sampled.set())
        sent: dict[str, str] = {}
        rates: dict[str, float | None] = {}
        polls = 0
        try:
            while True:
                new: dict[str, str] = {}
                charts = sampled.is_set()
                if charts:
                    sampled.clear()
                    times, series = _history(request, query)
                    rates = hit_rates(series)
                part = await _part_values(request, query, rates)
                if charts:
                    found = of_workers(times, series)
                    new["charts"] = await asyncio.to_thread(render, "chart_data", charts=found)
                new["cluster"] = await asyncio.to_thread(
                    render, "cluster_part", viewer=viewer, **part
                )
                if polls % POLLS_PER_JOBS == 0:
                    jobs = await asyncio.to_thread(_jobs, request)
                    new["jobs"] = await asyncio.to_thread(
                        render, "cluster_jobs", viewer=viewer, jobs=jobs
                    )
                polls += 1
                changed = {name: value for name, value in new.items() if sent.get(name) != value}
                sent |= changed
                yield b"".join(event(*each) for each in changed.items()) or KEEP_ALIVE
                await asyncio.sleep(POLL_INTERVAL_S)
        finally:
            stop()

    return stream(request, viewer, pieces)


@router.post("/workers")
async def join(request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Add a worker by its URL."""
    fields = forms.fields_of(form, WorkerJoin, WORKER)
    required = {name: fields.get(name) or "" for name in ("id", "url")}
    body = forms.read(WorkerJoin, {**fields, **required}, WORKER)
    return await _changed(request, viewer, form, body, changing.join_worker, WORKER, "joining")


@router.post("/workers/{worker_id}/remove")
def remove(
    worker_id: str, request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession
) -> Response:
    """Drain a worker, then remove it; or remove it at once."""
    fleet: FleetParts = request.app.state.fleet
    changes = changing.changes_of(fleet, session, viewer.principal)
    force = form.get("calls") == "cut"
    changing.remove_worker(fleet, session, changes, worker_id, force=force)
    return RedirectResponse(f"{PAGE.path}?done=removed", status_code=303)


@router.post("/aliases")
async def put_alias(request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Create an alias, or change the target of the one with this name."""
    body = alias_of(form)

    def put(
        fleet: FleetParts, session: Session, changes: FleetChanges, alias: NamedAlias
    ) -> AliasOut:
        return changing.put_alias(
            fleet, session, changes, alias.name, AliasPut(target=alias.target)
        )

    return await _changed(request, viewer, form, body, put, ALIAS, "alias")


@router.post("/aliases/remove")
def remove_alias(
    request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession
) -> Response:
    """Remove an alias."""
    fleet: FleetParts = request.app.state.fleet
    changes = changing.changes_of(fleet, session, viewer.principal)
    changing.remove_alias(fleet, session, changes, form.get("name", ""))
    return RedirectResponse(f"{PAGE.path}?done=alias", status_code=303)


def alias_of(form: Mapping[str, str]) -> NamedAlias | forms.Wrong:
    """Return the alias of a form; a line of its target is a model, or a model and its weight."""
    target: dict[str, float | str] = {}
    for line in forms.lines(form.get(ALIAS + "target")):
        model, _, weight = line.rpartition(" ")
        try:
            target[model or weight] = float(weight) if model else 1.0
        except ValueError:
            target[line] = 1.0
    return forms.read(NamedAlias, {"name": form.get(ALIAS + "name", ""), "target": target}, ALIAS)


async def _changed(
    request: Request,
    viewer: Viewer,
    form: Mapping[str, str],
    body: forms.Body | forms.Wrong,
    change: Callable[[FleetParts, Session, FleetChanges, forms.Body], object],
    prefix: str,
    done: str,
) -> Response:
    """Apply a valid change of the fleet, or show the page with its errors."""
    fleet: FleetParts = request.app.state.fleet

    def store(session: Session, body: forms.Body) -> None:
        change(fleet, session, changing.changes_of(fleet, session, viewer.principal), body)

    wrong = await asyncio.to_thread(forms.store_valid, request, form, body, store, prefix)
    if wrong:
        return await _page(request, viewer, given=form, wrong=wrong)
    return RedirectResponse(f"{PAGE.path}?done={done}", status_code=303)


@router.post("/workers/{worker_id}/drain")
def drain(
    worker_id: str, request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession
) -> Response:
    """Drain a worker."""
    fleet: FleetParts = request.app.state.fleet
    changes = changing.changes_of(fleet, session, viewer.principal)
    changing.drain_worker(fleet, session, changes, worker_id)
    return RedirectResponse(f"{page_of(form, PAGE).path}?done=draining", status_code=303)


@router.post("/workers/{worker_id}/undrain")
def undrain(
    worker_id: str, request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession
) -> Response:
    """Undrain a worker."""
    fleet: FleetParts = request.app.state.fleet
    changes = changing.changes_of(fleet, session, viewer.principal)
    changing.undrain_worker(fleet, session, changes, worker_id)
    return RedirectResponse(f"{PAGE.path}?done=undrained", status_code=303)


@router.post("/jobs/{job}/run")
def run(
    job: str, request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession
) -> Response:
    """Run a background job soon."""
    run_soon(session, request.app.state.settings, request.app.state.jobs, viewer.principal, job)
    return RedirectResponse(f"{page_of(form, PAGE).path}?done=job", status_code=303)


def _history(request: Request, query: FleetQuery) -> tuple[list[float], dict[str, WorkerSeries]]:
    """Return the times of the samples, and the workers that match the filter."""
    history: History = request.app.state.history
    found = history.snapshot(clients=0)
    workers = {} if found.cluster is None else found.cluster.workers
    matching = {name: each for name, each in workers.items() if _matches(query, name, each.model)}
    return found.at, matching


def _matches(query: FleetQuery, *names: str) -> bool:
    return query.worker.strip() in " ".join(names)


async def _part_values(
    request: Request, query: FleetQuery, rates: dict[str, float | None]
) -> dict[str, Any]:
    """Return the template values of the live part."""
    fleet: FleetParts = request.app.state.fleet
    cluster = await cluster_out(fleet)
    aliases = aliases_page(fleet, Paging(limit=MAX_PAGE)).items
    matching = [each for each in aliases if _matches(query, each.name, *each.target)]
    named = {
        name: [each.name for each in aliases if name in each.target]
        for name in (each["model"] for each in cluster["models"])
    }
    members = {worker["worker_id"]: worker for worker in cluster["workers"]}
    found = [
        each for each in await workers_out(fleet) if _matches(query, each.id, each.model or "")
    ]
    # Workers that need attention are listed first.
    found.sort(key=lambda each: (each.state == "serving" and not each.problem, each.id))
    end = query.offset + PER_PAGE
    shown = found[query.offset : end]
    return {
        "cluster": cluster,
        "aliases": matching[:PER_PAGE],
        "more_aliases": max(0, len(matching) - PER_PAGE),
        "aliases_of": named,
        "workers": [(each, members.get(each.id, {}), rates.get(each.id)) for each in shown],
        "part": ListPart(query.offset, PER_PAGE, len(shown), len(found), end < len(found)),
        "place": f"{PAGE.path}?{urlencode({'worker': query.worker})}",
        "alone": {each.id: fleet.models.models_without(each.id) for each in shown},
    }


def _jobs(request: Request) -> Jobs | None:
    """Return the background jobs; None while the database does not answer."""
    try:
        with request.app.state.session_factory() as session:
            return jobs_out(read_only(session), request.app.state.settings)
    except OperationalError:
        return None
