"""``/admin/cluster/workers`` and ``/admin/cluster/aliases``: the fleet of all sources.

Changes are stored and survive a restart. Workers of all sources are shown and drained here; other
changes of workers and aliases of other sources are made at their source.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, status

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db.schemas import Page, Paging
from fairserve.platform.db.session import WriteSession
from fairserve.platform.fleet import changing
from fairserve.platform.fleet.fleet_view import aliases_page, workers_out, workers_page
from fairserve.platform.fleet.schemas import (
    AliasOut,
    AliasPut,
    ModelName,
    RemoveQuery,
    WorkerJoin,
    WorkerOut,
    WorkerPut,
    WorkerQuery,
)
from fairserve.platform.fleet.service import FleetChanges
from fairserve.platform.tenancy.principals import AdminPrincipal, require_admin

router = APIRouter(prefix="/admin/cluster")

AliasName = Annotated[ModelName, Path()]


def _changes(request: Request, session: WriteSession, principal: AdminPrincipal) -> FleetChanges:
    return changing.changes_of(request.app.state.fleet, session, principal)


Changes = Annotated[FleetChanges, Depends(_changes, scope="function")]


@router.get("/workers", dependencies=[Depends(require_admin)])
async def list_workers(request: Request, query: Annotated[WorkerQuery, Query()]) -> Page[WorkerOut]:
    """Return workers of all sources, by id or with that first whose drain costs least."""
    return await workers_page(request.app.state.fleet, query)


@router.get("/workers/{worker_id}", dependencies=[Depends(require_admin)])
async def read_worker(worker_id: str, request: Request) -> WorkerOut:
    """Return one worker."""
    for worker in await workers_out(request.app.state.fleet):
        if worker.id == worker_id:
            return worker
    raise NotFoundError(f"there is no worker {worker_id!r}", param="worker_id")


@router.post("/workers", status_code=status.HTTP_201_CREATED)
def join_worker(
    body: WorkerJoin, request: Request, session: WriteSession, fleet: Changes
) -> WorkerOut:
    """Add a worker. It serves once it responds and reports the model."""
    return changing.join_worker(request.app.state.fleet, session, fleet, body)


@router.put("/workers/{worker_id}")
def change_worker(
    worker_id: str, body: WorkerPut, request: Request, session: WriteSession, fleet: Changes
) -> WorkerOut:
    """Change a worker that joined through the API. It finishes its calls, then joins with the values.

    Only ``tokenizer`` and ``managed_by`` change without a drain.
    """
    return changing.change_worker(request.app.state.fleet, session, fleet, worker_id, body)


@router.post("/workers/{worker_id}/drain")
def drain_worker(
    worker_id: str, request: Request, session: WriteSession, fleet: Changes
) -> WorkerOut:
    """Drain a worker of any source: it finishes its calls, gets no new ones and stays listed.

    ``note`` names the models that no worker serves any more.
    """
    return changing.drain_worker(request.app.state.fleet, session, fleet, worker_id)


@router.post("/workers/{worker_id}/undrain")
def undrain_worker(
    worker_id: str, request: Request, session: WriteSession, fleet: Changes
) -> WorkerOut:
    """Resume calls to a drained worker once it responds."""
    return changing.undrain_worker(request.app.state.fleet, session, fleet, worker_id)


@router.delete("/workers/{worker_id}", status_code=status.HTTP_204_NO_CONTENT)
def remove_worker(
    worker_id: str,
    request: Request,
    session: WriteSession,
    fleet: Changes,
    query: Annotated[RemoveQuery, Query()],
) -> None:
    """Drain a worker, then remove it. ``force=true`` does not wait for its calls."""
    changing.remove_worker(request.app.state.fleet, session, fleet, worker_id, force=query.force)


@router.get("/aliases", dependencies=[Depends(require_admin)])
async def list_aliases(request: Request, query: Annotated[Paging, Query()]) -> Page[AliasOut]:
    """Return the aliases of all sources, by name."""
    return aliases_page(request.app.state.fleet, query)


@router.put("/aliases/{name:path}")
def put_alias(
    name: AliasName, body: AliasPut, request: Request, session: WriteSession, fleet: Changes
) -> AliasOut:
    """Create or change an alias; effective from the next call."""
    return changing.put_alias(request.app.state.fleet, session, fleet, name, body)


@router.delete("/aliases/{name:path}", status_code=status.HTTP_204_NO_CONTENT)
def remove_alias(name: AliasName, request: Request, session: WriteSession, fleet: Changes) -> None:
    """Remove an alias; calls for it get 404 from now on."""
    changing.remove_alias(request.app.state.fleet, session, fleet, name)
