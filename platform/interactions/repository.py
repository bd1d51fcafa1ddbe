"""Ended interactions of one app, as the ledger has them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select

from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.ledger import Interaction, LedgerCall

MAX_CALLS = 10_000
"""Of one run, as many as the tracker lets be live."""


def find(sessions: SessionFactory, tenant: str, app: str, run_id: str) -> Interaction | None:
    """An ended run by the client's id."""
    with sessions() as session:
        return read_only(session).get(Interaction, (tenant, app, run_id))


def latest(
    sessions: SessionFactory,
    tenant: str | None,
    app: str | None,
    *,
    limit: int,
    offset: int,
    user: str | None = None,
    state: str | None = None,
) -> list[Interaction]:
    """Ended runs, the latest opened first; None: of all tenants, apps, users or states.

    An index gives them in this order, of an app, a tenant or all; users and states are looked for in it.
    """
    wanted = (
        (Interaction.tenant_id, tenant),
        (Interaction.app_id, app),
        (Interaction.user_id, user),
        (Interaction.state, state),
    )
    query = (
        select(Interaction)
        .where(*(column == value for column, value in wanted if value is not None))
        .order_by(
            Interaction.opened_at.desc(),
            Interaction.id,
            Interaction.app_id,
            Interaction.tenant_id,
        )
        .limit(limit)
        .offset(offset)
    )
    with sessions() as session:
        return list(read_only(session).scalars(query))


def last_end(sessions: SessionFactory) -> datetime | None:
    """When the last run of all ended; an index knows it."""
    with sessions() as session:
        return read_only(session).scalar(select(func.max(Interaction.ended_at)))


def calls(
    sessions: SessionFactory, tenant: str, app: str, run_id: str, limit: int = MAX_CALLS
) -> list[LedgerCall]:
    """Ended calls of a run, the first accepted first. Refused ones are none of its graph."""
    query = (
        select(LedgerCall)
        .where(
            LedgerCall.interaction_id == run_id,
            # Not as plain columns: SQLite would take their index and look at all the tenant's calls.
            LedgerCall.tenant_id.concat("") == tenant,
            LedgerCall.app_id.concat("") == app,
            LedgerCall.outcome != "refused",
        )
        .order_by(LedgerCall.accepted_at, LedgerCall.call_id)
        .limit(limit)
    )
    with sessions() as session:
        return list(read_only(session).scalars(query))
