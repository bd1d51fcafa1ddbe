"""``/admin/interactions``: the runs of all tenants for operators, who may cancel any."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from fairserve.platform.serving.interactions.listing import RunFilter, list_runs
from fairserve.platform.serving.interactions.schemas import (
    AnyInteractionList,
    AnyInteractionOut,
    AnyInteractionQuery,
    of_row,
    of_view,
)
from fairserve.platform.serving.interactions.service import RunParts, cancel_for_operator
from fairserve.platform.tenancy.principals import AdminPrincipal, require_admin

router = APIRouter(prefix="/admin/interactions")


@router.get("", dependencies=[Depends(require_admin)])
async def list_all_interactions(
    request: Request, query: Annotated[AnyInteractionQuery, Query()]
) -> AnyInteractionList:
    """Live runs and ended ones, newest first; ``offset`` counts among the ended."""
    parts: RunParts = request.app.state.runs
    which = RunFilter(query.tenant, query.app, query.user, query.state)
    live, ended = await list_runs(parts.control, parts.sessions, which, query)
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
    """Cancel a run of any tenant with all its calls, queued or running; a program, too."""
    await cancel_for_operator(request.app.state.runs, principal, app_id, interaction_id)
    return {"id": interaction_id, "object": "interaction", "cancelled": True}
