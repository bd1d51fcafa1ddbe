"""``/admin/cluster`` for operators, and health checks for what starts, stops and balances servers.

Liveness: the process answers. Readiness: a call that comes now is served. Each has the names that
orchestrators and clients use; ``/health`` is a check of liveness, so that a probe of this path never
restarts a server that only lacks workers.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from fairserve.platform.control.service import ControlService
from fairserve.platform.control.storage import ServingRight
from fairserve.platform.fleet.fleet_view import cluster_out
from fairserve.platform.fleet.models import Models
from fairserve.platform.tenancy.principals import require_admin

router = APIRouter()

HEALTH_PATHS = frozenset(
    {"/health", "/healthz", "/livez", "/readyz", "/health/liveliness", "/health/readiness"}
)
"""Paths that need no key."""


@router.get("/admin/cluster", dependencies=[Depends(require_admin)])
async def read_cluster(request: Request) -> dict[str, Any]:
    """Return workers, models, queue and load from control's current view.

    ``fleet_file`` has the error of the current file, if any. ``state`` of a worker is joining, ready,
    draining or open circuit, and ``reason`` why it is not ready; ``reported`` has the worker's metrics;
    ``kv_events`` has statistics of its KV events, null without a subscription; ``cache_view`` is the
    source of the router's view of its cache.
    """
    return await cluster_out(request.app.state.fleet)


@router.get("/health")
@router.get("/healthz")
@router.get("/livez")
@router.get("/health/liveliness")
async def liveliness() -> dict[str, str]:
    """Report that the process is alive."""
    return {"status": "alive"}


@router.get("/readyz", response_model=None)
@router.get("/health/readiness", response_model=None)
async def readiness(request: Request) -> JSONResponse:
    """Return 200 while a model can serve, else 503 with the reason.

    Reasons are starting, draining, no worker, and no database (the lease has expired).

    The response has only numbers, because it needs no key: ``models`` with a worker, and their
    ``workers``. A worker whose model waits for its tokenizer does not count.
    """
    models: Models = request.app.state.models
    control: ControlService = request.app.state.control
    lease: ServingRight | None = request.app.state.lease
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
        "workers": sum(
            models.workers_up(model.worker_name) for model in models.served() if not model.base
        ),
        "models": len(models.ready()),
    }
    return JSONResponse(
        {"status": status, **numbers}, status_code=200 if status == "ready" else 503
    )
