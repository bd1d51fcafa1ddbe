"""``/admin/cluster`` for operators, ``/health/*`` for whoever starts and stops this server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from fairserve.platform.auth import require_admin
from fairserve.platform.cluster.pool import WorkerPool
from fairserve.platform.completions.service import Completions
from fairserve.platform.control.port import ControlPort

router = APIRouter()


@router.get("/admin/cluster", dependencies=[Depends(require_admin)])
async def read_cluster(request: Request) -> dict[str, Any]:
    """Workers, queue and load, as control sees them now.

    ``state`` of a worker is joining, ready, draining or open circuit, ``reason`` why it is not ready;
    ``reported`` is what it tells of itself; ``kv_events`` what was seen of them, null where it publishes
    none or nobody follows; ``cache_view`` whose view of its cache the router goes by.
    """
    control: ControlPort = request.app.state.control
    pool: WorkerPool = request.app.state.pool
    view = asdict(await control.cluster())
    known = {worker["worker_id"]: worker for worker in view.pop("workers")}
    workers = [{**member, **known.get(member["worker_id"], {})} for member in pool.views()]
    supervisor = request.app.state.supervisor
    processes = [asdict(process) for process in supervisor.processes()] if supervisor else []
    return {**view, "workers": workers, "processes": processes}


@router.get("/health/liveliness")
async def liveliness() -> dict[str, str]:
    """The process answers."""
    return {"status": "alive"}


@router.get("/health/readiness", response_model=None)
async def readiness(request: Request) -> JSONResponse:
    """200 while calls are served; 503 with the reason while starting, draining or without workers."""
    completions: Completions = request.app.state.completions
    pool: WorkerPool = request.app.state.pool
    control: ControlPort = request.app.state.control
    if (await control.cluster()).draining:
        status = "draining"
    elif completions.model is None:
        status = "starting"
    elif not pool.serving:
        status = "no worker"
    else:
        return JSONResponse({"status": "ready", "workers": pool.serving})
    return JSONResponse({"status": status, "workers": pool.serving}, status_code=503)
