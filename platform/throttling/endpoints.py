"""``/admin/throttling``: the system and its parameters, their history, and the refusals."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from fairserve.platform.auth import AdminPrincipal, require_admin
from fairserve.platform.db.schemas import Page, Paging
from fairserve.platform.db.session import ReadSession, WriteSession, after_commit
from fairserve.platform.throttling import repository, service
from fairserve.platform.throttling.preview import Previews, PreviewWorld
from fairserve.platform.throttling.preview_schemas import PreviewIn, PreviewOut
from fairserve.platform.throttling.schemas import (
    EventOut,
    EventQuery,
    ThrottlingChanged,
    ThrottlingOut,
    ThrottlingPut,
    VersionOut,
)

router = APIRouter(prefix="/admin/throttling")


@router.get("", dependencies=[Depends(require_admin)])
def read_throttling(request: Request, session: ReadSession) -> ThrottlingOut:
    """The system in force, and every parameter with value, default, unit and meaning."""
    settings = request.app.state.settings
    return service.report(settings, service.load_current(session, settings))


@router.put("")
def change_throttling(
    body: ThrottlingPut, request: Request, session: WriteSession, principal: AdminPrincipal
) -> ThrottlingChanged:
    """Change it while running: parameters that are left out return to their defaults."""
    settings = request.app.state.settings
    current, options, kept = service.change(session, principal, settings, body)
    control = request.app.state.control
    after_commit(session, lambda: control.apply_throttling(current.system, options))
    report = service.report(settings, current)
    return ThrottlingChanged(**report.model_dump(), after_worker_restart=kept)


@router.post("/preview", dependencies=[Depends(require_admin)])
async def preview_throttling(body: PreviewIn, request: Request) -> PreviewOut:
    """What a change would have made of the last minutes: they are replayed with and without it.

    Nothing changes. 409 while another preview is made, or where nothing was recorded.
    """
    state = request.app.state
    if not hasattr(state, "previews"):
        state.previews = Previews()
    ledger = getattr(state, "ledger", None)
    world = PreviewWorld(
        settings=state.settings,
        sessions=state.session_factory,
        cluster=await state.control.cluster(),
        embedded=getattr(state, "supervisor", None) is not None,
        flush=None if ledger is None else ledger.flush,
    )
    previews: Previews = state.previews
    return await previews.make(world, body, request.is_disconnected)


@router.get("/history", dependencies=[Depends(require_admin)])
def list_versions(session: ReadSession, query: Annotated[Paging, Query()]) -> Page[VersionOut]:
    """All versions, newest first."""
    rows, total = repository.history(session, limit=query.limit, offset=query.offset)
    return Page(
        items=[VersionOut.model_validate(row) for row in rows],
        total=total,
        limit=query.limit,
        offset=query.offset,
    )


@router.get("/events", dependencies=[Depends(require_admin)])
def list_events(session: ReadSession, query: Annotated[EventQuery, Query()]) -> Page[EventOut]:
    """Refusals, newest first."""
    rows, total = repository.events(session, query)
    items = [
        EventOut(
            call_id=row.call_id,
            at=row.at,
            tenant=row.tenant_id,
            app=row.app_id,
            user=row.user_id,
            interaction_id=row.interaction_id,
            reason=row.reason,
            scope=row.scope,
            limit=row.limit_count,
            count=row.count,
            window_s=row.window_s,
            retry_after_s=row.retry_after_s,
            mid_run=row.mid_run,
        )
        for row in rows
    ]
    return Page(items=items, total=total, limit=query.limit, offset=query.offset)
