"""Bodies of ``/v1/interactions``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from fairserve.interactions.programs.declared import ProgramIn
from fairserve.interactions.tracking.identity import MAX_ID_CHARS, client_run_id
from fairserve.platform.control.messages import RunView
from fairserve.platform.db.ledger import LedgerInteraction
from fairserve.platform.db.schemas import ObjectId, Paging, Strict, TenantQuery, UserId
from fairserve.platform.serving.interactions.graph_view import MAX_NODES
from fairserve.platform.serving.interactions.listing import ListedState
from fairserve.platform.serving.interactions.repository import MAX_CALLS
from fairserve.platform.serving.programs.schemas import ProgramOut


class InteractionCreate(Strict):
    """Opens a run. Empty, its calls must then name the same ``user``, or none, and ``sink`` is the id of
    the call with which it is complete. With ``nodes`` it is a program, which the platform runs.
    """

    id: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)] | None = None
    user: UserId | None = None
    sink: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)] | None = None


class ProgramCreate(InteractionCreate, ProgramIn):
    """Opens a run: an empty one, or with ``nodes`` a program that the platform runs."""

    # For the API's description: fairserve.platform.serving.interactions.opening reads the body.


class OwnerQuery(TenantQuery):
    """``app`` names an app of the tenant for a tenant key; an app key may leave it out."""

    app: ObjectId | None = None


class InteractionQuery(Paging, OwnerQuery):
    """``state=live`` lists runs that have not ended, ``ended`` the others; both by default."""

    state: Annotated[str, Field(pattern="^(live|ended|all)$")] = "all"


class GraphQuery(OwnerQuery):
    """Format of a run's graph, and the page of its calls; a picture has at most 1,000."""

    format: Literal["json", "svg"] = "json"
    limit: int = Field(MAX_NODES, ge=1, le=MAX_NODES)
    offset: int = Field(0, ge=0, le=MAX_CALLS)


class InteractionOut(BaseModel):
    """A run. Token counts of a live one are those of its ended calls."""

    id: str
    object: str = "interaction"
    app: str
    state: str
    user: str
    opened_at: datetime
    last_active_at: datetime | None
    ended_at: datetime | None
    calls: int
    live_calls: int
    tokens: int
    wasted_tokens: int = 0
    waste_cause: str = ""
    program: ProgramOut | None = None
    """State of a declared program, when the run is read by its id, until its retention ends."""


class InteractionList(BaseModel):
    """Live runs first, then ended ones, the latest first."""

    object: str = "list"
    items: list[InteractionOut]


class AnyInteractionQuery(Paging):
    """Runs of every tenant, or of a tenant, an app and a user.

    ``held`` runs are live and wait for memory; ``active`` ones are live and do not. The states after
    ``ended`` are those of ended ones.
    """

    tenant: ObjectId | None = None
    app: ObjectId | None = None
    user: UserId | None = None
    state: ListedState = "all"


class AnyInteractionOut(InteractionOut):
    """A run with its tenant."""

    tenant: str


class AnyInteractionList(BaseModel):
    """Live runs first, then ended ones, the latest first."""

    object: str = "list"
    items: list[AnyInteractionOut]


def of_view(view: RunView) -> InteractionOut:
    """Return a run from control's view."""
    return InteractionOut(
        id=client_run_id(view.app, view.interaction_id),
        app=view.app,
        state=view.state,
        user=view.user,
        opened_at=datetime.fromtimestamp(view.opened_at, UTC),
        last_active_at=datetime.fromtimestamp(view.last_active_at, UTC),
        ended_at=None if view.ended_at is None else datetime.fromtimestamp(view.ended_at, UTC),
        calls=view.calls,
        live_calls=view.live_calls,
        tokens=view.tokens,
        wasted_tokens=view.wasted_tokens,
        waste_cause=view.waste_cause,
    )


def of_row(row: LedgerInteraction) -> InteractionOut:
    """Return an ended run from its ledger row."""
    return InteractionOut(
        id=row.id,
        app=row.app_id,
        state=row.state,
        user=row.user_id,
        opened_at=row.opened_at,
        last_active_at=row.ended_at,
        ended_at=row.ended_at,
        calls=row.calls,
        live_calls=0,
        tokens=row.tokens,
        wasted_tokens=row.wasted_tokens,
        waste_cause=row.waste_cause,
    )
