"""``/admin/cluster`` for operators, ``/health/*`` for whoever starts and stops this server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from fairserve.platform.control.lease import Lease
from fairserve.platform.control.port import ControlPort
from fairserve.platform.fleet.fleet_view import member_views, models_out
from fairserve.platform.fleet.models import Models
from fairserve.platform.fleet.pool import WorkerPool
from fairserve.platform.tenancy.auth import require_admin

router = APIRouter()


@router.get("/admin/cluster", dependencies=[Depends(require_admin)])
async def read_cluster(request: Request) -> dict[str, Any]:
    """Return workers, models, queue and load, as control sees them now.

    ``fleet_file`` names the error of the file as it is now, if it has one.
    ``state`` of a worker is joining, ready, draining or open circuit, ``reason`` why it is not ready;
    ``reported`` has the worker's figures; ``kv_events`` what was seen of them, null where it publishes
    none or nobody follows; ``cache_view`` whose view of its cache the router goes by.
    """
    control: ControlPort = request.app.state.control
    pool: WorkerPool = request.app.state.pool
    view = asdict(await control.cluster())
    known = {worker["worker_id"]: worker for worker in view.pop("workers")}
    seen_models = view.pop("models")
    members = member_views(pool, request.app.state.model_pools)
    workers = [{**member, **known.get(member["worker_id"], {})} for member in members]
    supervisor = request.app.state.supervisor
    processes = [asdict(process) for process in supervisor.processes()] if supervisor else []
    state = request.app.state
    watch = state.fleet_watch
    return {
        **view,
        "workers": workers,
        "models": models_out(state.models, state.model_pools, seen_models),
        "fleet_file": {"path": str(watch.path), "problem": watch.problem} if watch else None,
        "processes": processes,
    }


@router.get("/health/liveliness")
async def liveliness() -> dict[str, str]:
    """Answer that the process lives."""
    return {"status": "alive"}


@router.get("/health/readiness", response_model=None)
async def readiness(request: Request) -> JSONResponse:
    """200 while a model can serve; 503 with the reason while it cannot.

    Reasons are starting, draining, no worker, and no database (its lease is over).

    Names are for keys only, so there are but numbers here: ``models`` that have a worker, and these
    ``workers``. One whose model waits for its tokenizer is none of them.
    """
    models: Models = request.app.state.models
    control: ControlPort = request.app.state.control
    lease: Lease | None = request.app.state.lease
    if (await control.cluster()).draining:
        status = "draining"
    elif lease is not None and lease.over:
        status = "no database"
    elif not len(models):
        status = "starting"
    elif not models.ready():
        status = "no worker"
    else:
        status = "ready"
    numbers = {
        "workers": sum(models.workers_up(model.worker_name) for model in models.served()),
        "models": len(models.ready()),
    }
    return JSONResponse(
        {"status": status, **numbers}, status_code=200 if status == "ready" else 503
    )
