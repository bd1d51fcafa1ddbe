"""``/admin/cluster/workers`` and ``/admin/cluster/aliases``: the fleet, of all sources.

What is changed here is stored and holds after a restart. Workers of all sources are shown and drained
here; else they and aliases of other sources are changed where they come from.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, status

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.schemas import Page, Paging
from fairserve.platform.db.session import WriteSession, after_commit
from fairserve.platform.fleet import repository
from fairserve.platform.fleet.fleet import DesiredWorker, StoredFleet
from fairserve.platform.fleet.fleet_view import (
    alias_out,
    drain_note,
    spec_of,
    state_of,
    worker_out,
    workers_out,
)
from fairserve.platform.fleet.running_fleet import RunningFleet
from fairserve.platform.fleet.schemas import (
    AliasOut,
    AliasPut,
    ModelName,
    RemoveQuery,
    WorkerJoin,
    WorkerOut,
)
from fairserve.platform.fleet.service import FleetChanges
from fairserve.platform.tenancy.auth import AdminPrincipal, require_admin

router = APIRouter(prefix="/admin/cluster")

AliasName = Annotated[ModelName, Path()]


def changes_of(request: Request, session: WriteSession, principal: AdminPrincipal) -> FleetChanges:
    """Dependency: changes of the fleet in the request's session, by whoever asks."""
    fleet: RunningFleet = request.app.state.fleet
    return FleetChanges(session, principal, fleet.desired, request.app.state.models.names())


Changes = Annotated[FleetChanges, Depends(changes_of, scope="function")]


def _apply_after_commit(request: Request, session: WriteSession, drop: str = "") -> None:
    fleet: RunningFleet = request.app.state.fleet
    factory = request.app.state.session_factory

    def apply() -> None:
        def load() -> StoredFleet:
            with factory() as reading:
                return repository.load_stored(read_only(reading))

        fleet.reload(load, drop)

    after_commit(session, apply)


@router.get("/workers", dependencies=[Depends(require_admin)])
async def list_workers(request: Request, query: Annotated[Paging, Query()]) -> Page[WorkerOut]:
    """Return workers of all sources, by id."""
    found = await workers_out(request.app.state)
    return Page(
        items=found[query.offset : query.offset + query.limit],
        total=len(found),
        limit=query.limit,
        offset=query.offset,
    )


@router.get("/workers/{worker_id}", dependencies=[Depends(require_admin)])
async def read_worker(worker_id: str, request: Request) -> WorkerOut:
    """Return one worker."""
    for worker in await workers_out(request.app.state):
        if worker.id == worker_id:
            return worker
    raise NotFoundError(f"there is no worker {worker_id!r}", param="worker_id")


@router.post("/workers", status_code=status.HTTP_201_CREATED)
def join_worker(
    body: WorkerJoin, request: Request, session: WriteSession, fleet: Changes
) -> WorkerOut:
    """Add a worker. It serves once it answers and reports the model."""
    row = fleet.join(body)
    _apply_after_commit(request, session)
    return worker_out(repository.spec_of(row), "api", "joining")


@router.post("/workers/{worker_id}/drain")
def drain_worker(
    worker_id: str, request: Request, session: WriteSession, fleet: Changes
) -> WorkerOut:
    """Let a worker of any source finish its calls, and give it no more. It stays listed.

    ``note`` names the models that no worker serves then.
    """
    worker, changed = fleet.drain(worker_id)
    _apply_after_commit(request, session)
    return _changed_out(request, worker, "draining" if changed else "")


@router.post("/workers/{worker_id}/undrain")
def undrain_worker(
    worker_id: str, request: Request, session: WriteSession, fleet: Changes
) -> WorkerOut:
    """Give a drained worker calls again, as soon as it answers."""
    worker, changed = fleet.undrain(worker_id)
    _apply_after_commit(request, session)
    return _changed_out(request, worker, "joining" if changed else "")


def _changed_out(request: Request, worker: DesiredWorker, state: str) -> WorkerOut:
    """Return a worker that changes to ``state``; empty for its present one."""
    here = request.app.state
    running: RunningFleet = here.fleet
    worker_id = worker.spec.worker_id
    return worker_out(
        spec_of(running, worker),
        worker.source,
        state or state_of(running, here.pool, worker_id),
        drain=worker.drain,
        note=drain_note(here.models, worker_id) if worker.drain is not None else None,
    )


@router.delete("/workers/{worker_id}", status_code=status.HTTP_204_NO_CONTENT)
def remove_worker(
    worker_id: str,
    request: Request,
    session: WriteSession,
    fleet: Changes,
    query: Annotated[RemoveQuery, Query()],
) -> None:
    """Drain a worker, then forget it. ``force=true`` does not wait for its calls."""
    fleet.remove(worker_id)
    _apply_after_commit(request, session, drop=worker_id if query.force else "")


@router.get("/aliases", dependencies=[Depends(require_admin)])
async def list_aliases(request: Request, query: Annotated[Paging, Query()]) -> Page[AliasOut]:
    """Aliases of all sources, by name."""
    state = request.app.state
    ready = set(state.models.ready())
    found = sorted(state.fleet.desired.aliases.items())
    return Page(
        items=[
            alias_out(name, alias.targets, alias.source, ready)
            for name, alias in found[query.offset : query.offset + query.limit]
        ],
        total=len(found),
        limit=query.limit,
        offset=query.offset,
    )


@router.put("/aliases/{name:path}")
def put_alias(
    name: AliasName, body: AliasPut, request: Request, session: WriteSession, fleet: Changes
) -> AliasOut:
    """Make an alias or change it; holds for the next call."""
    row = fleet.put_alias(name, body)
    _apply_after_commit(request, session)
    return alias_out(row.name, body.target, "api", set(request.app.state.models.ready()))


@router.delete("/aliases/{name:path}", status_code=status.HTTP_204_NO_CONTENT)
def remove_alias(name: AliasName, request: Request, session: WriteSession, fleet: Changes) -> None:
    """Remove an alias; calls for it answer 404 from now on."""
    fleet.remove_alias(name)
    _apply_after_commit(request, session)
