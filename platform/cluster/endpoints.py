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

    ``kv_events`` of a worker is what was seen of them; null: it publishes none, or nobody follows.
    """
    control: ControlPort = request.app.state.control
    pool: WorkerPool = request.app.state.pool
    view = asdict(await control.cluster())
    known = {worker["worker_id"]: worker for worker in view.pop("workers")}
    workers = []
    for member in pool.members():
        seen = known.get(member.worker_id)
        workers.append(
            {
                "worker_id": member.worker_id,
                "url": member.url,
                "ready": member.ready,
                "models": list(member.facts.models) if member.facts else [],
                "kv_events": asdict(member.follower.stats) if member.follower else None,
                **(seen or {}),
            }
        )
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
    elif not len(pool):
        status = "no worker"
    else:
        return JSONResponse({"status": "ready", "workers": len(pool)})
    return JSONResponse({"status": status, "workers": len(pool)}, status_code=503)
