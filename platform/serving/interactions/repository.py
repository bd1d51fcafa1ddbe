"""Read ended interactions and their calls from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Row, Select, func, select

from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction

MAX_CALLS = 10_000
"""Calls of one run at most: the tracker's limit of live calls."""


def find(sessions: SessionFactory, tenant: str, app: str, run_id: str) -> LedgerInteraction | None:
    """Return an ended run by the client's id."""
    with sessions() as session:
        return read_only(session).get(LedgerInteraction, (tenant, app, run_id))


def latest(
    sessions: SessionFactory,
    tenant: str | None,
    app: str | None,
    *,
    limit: int,
    offset: int,
    user: str | None = None,
    state: str | None = None,
) -> list[LedgerInteraction]:
    """Return ended runs, the latest opened first; None: all tenants, apps, users or states.

    An index gives them in this order, of an app, a tenant or all; users and states are searched in it.
    """
    wanted = (
        (LedgerInteraction.tenant_id, tenant),
        (LedgerInteraction.app_id, app),
        (LedgerInteraction.user_id, user),
        (LedgerInteraction.state, state),
    )
    query = (
        select(LedgerInteraction)
        .where(
            LedgerInteraction.shared_by.is_(None),
            *(column == value for column, value in wanted if value is not None),
        )
        .order_by(
            LedgerInteraction.opened_at.desc(),
            LedgerInteraction.id,
            LedgerInteraction.app_id,
            LedgerInteraction.tenant_id,
        )
        .limit(limit)
        .offset(offset)
    )
    with sessions() as session:
        return list(read_only(session).scalars(query))


def last_end(sessions: SessionFactory) -> datetime | None:
    """Return the end of the run that ended last, from an index."""
    with sessions() as session:
        return read_only(session).scalar(select(func.max(LedgerInteraction.ended_at)))


AnyRow: TypeAlias = Row[*tuple[Any, ...]]
Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])
GRAPH_COLUMNS = (
    LedgerCall.call_id,
    LedgerCall.name,
    LedgerCall.parents,
    LedgerCall.agent,
    LedgerCall.stage,
    LedgerCall.outcome,
    LedgerCall.model,
    LedgerCall.served_model,
    LedgerCall.service_tier,
    LedgerCall.worker,
    LedgerCall.accepted_at,
    LedgerCall.queue_delay_s,
    LedgerCall.ttft_s,
    LedgerCall.duration_s,
    LedgerCall.input_tokens,
    LedgerCall.system_tokens,
    LedgerCall.cached_tokens,
    LedgerCall.output_tokens,
    LedgerCall.reasoning_tokens,
    LedgerCall.cost,
    LedgerCall.error,
)


def calls(
    sessions: SessionFactory, tenant: str, app: str, run_id: str, limit: int = MAX_CALLS
) -> list[LedgerCall]:
    """Return the ended calls of a run in the order of acceptance. Its graph has no rejected calls."""
    query = _of_run(select(LedgerCall), tenant, app, run_id, limit)
    with sessions() as session:
        return list(read_only(session).scalars(query))


def graph_rows(sessions: SessionFactory, tenant: str, app: str, run_id: str) -> Sequence[AnyRow]:
    """Return the same calls with the columns of a graph, in a third of the time of whole rows."""
    query = _of_run(select(*GRAPH_COLUMNS), tenant, app, run_id, MAX_CALLS)
    with sessions() as session:
        return read_only(session).execute(query).all()


def _of_run(query: Query, tenant: str, app: str, run_id: str, limit: int) -> Query:
    return (
        query.where(
            LedgerCall.interaction_id == run_id,
            # Not as plain columns: SQLite would take their index and read all the tenant's calls.
            LedgerCall.tenant_id.concat("") == tenant,
            LedgerCall.app_id.concat("") == app,
            LedgerCall.outcome != "refused",
        )
        .order_by(LedgerCall.accepted_at, LedgerCall.call_id)
        .limit(limit)
    )
