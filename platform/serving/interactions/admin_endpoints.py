"""``/admin/interactions``: the runs of all tenants for operators, who may cancel any."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from sqlalchemy.exc import OperationalError

from fairserve.interactions.identity import core_run_id
from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.control.port import ControlPort, RunView
from fairserve.platform.db import audit
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.session import unavailable
from fairserve.platform.serving.interactions.endpoints import service_of
from fairserve.platform.serving.interactions.listing import RunFilter, list_runs
from fairserve.platform.serving.interactions.opening import checked
from fairserve.platform.serving.interactions.schemas import (
    AnyInteractionList,
    AnyInteractionOut,
    AnyInteractionQuery,
    of_row,
    of_view,
)
from fairserve.platform.tenancy.auth import AdminPrincipal, Principal, require_admin

router = APIRouter(prefix="/admin/interactions")

BY_OPERATOR = "cancelled by an operator"


@router.get("", dependencies=[Depends(require_admin)])
async def list_all_interactions(
    request: Request, query: Annotated[AnyInteractionQuery, Query()]
) -> AnyInteractionList:
    """Live runs and ended ones, newest first; ``offset`` counts among the ended."""
    state = request.app.state
    which = RunFilter(query.tenant, query.app, query.user, query.state)
    live, ended = await list_runs(state.control, state.session_factory, which, query)
    return AnyInteractionList(
        items=[
            *(AnyInteractionOut(**vars(of_view(view)), tenant=view.tenant) for view in live),
            *(AnyInteractionOut(**vars(of_row(row)), tenant=row.tenant_id) for row in ended),
        ]
    )


@router.delete("/{app_id}/{interaction_id:path}")
async def cancel_any_interaction(
    app_id: str, interaction_id: str, request: Request, principal: AdminPrincipal
) -> dict[str, Any]:
    """Cancel a run of any tenant with all its calls, queued or running; a program, too.

    The log has it as soon as it is asked for, even if the run then ends by itself.
    """
    control: ControlPort = request.app.state.control
    view = await control.interaction(core_run_id(app_id, checked(interaction_id)))
    if view is None:
        raise NotFoundError("there is no such interaction", code="interaction_not_found")
    if view.ended_at is None:
        factory = request.app.state.session_factory
        await asyncio.to_thread(_record, factory, principal, view, interaction_id)
    await service_of(request, view.tenant, app_id).cancel(interaction_id, BY_OPERATOR)
    return {"id": interaction_id, "object": "interaction", "cancelled": True}


def _record(sessions: SessionFactory, principal: Principal, view: RunView, run_id: str) -> None:
    before = {"state": view.state, "calls": view.calls, "live_calls": view.live_calls}
    try:
        with sessions.begin() as session:
            audit.record(
                session,
                principal,
                "interaction.cancel",
                f"{view.app}/{run_id}",
                tenant_id=view.tenant,
                before=before,
            )
    except OperationalError as error:
        raise unavailable() from error
