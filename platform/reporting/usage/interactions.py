"""List interactions with their usage, newest first, from the rows of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, and_, case, or_, select, tuple_
from sqlalchemy.orm import Session

from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction
from fairserve.platform.db.rows import count as count_rows
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import view_of
from fairserve.platform.db.sums import sum_of
from fairserve.platform.reporting.usage.levels import TOKENS
from fairserve.platform.reporting.usage.schemas import (
    InteractionPage,
    InteractionUsage,
    InteractionUsageQuery,
)
from fairserve.platform.reporting.usage.zones import day_bounds, zone_named

_COUNTS: Mapping[str, Any] = {
    **{name: getattr(LedgerCall, name) for name in TOKENS},
    "flex_calls": case((LedgerCall.service_tier == "flex", 1), else_=0),
    "priority_calls": case((LedgerCall.service_tier == "priority", 1), else_=0),
}
"""Number that each charged call adds to a field of :class:`InteractionUsage`."""
_UNUSED: dict[str, Any] = {
    **dict.fromkeys(_COUNTS, 0),
    "service": 0.0,
    "cost": Decimal(0),
}
"""Usage of a run without a charged call."""
_NEWEST = (
    LedgerInteraction.opened_at.desc(),
    LedgerInteraction.id,
    LedgerInteraction.app_id,
    LedgerInteraction.tenant_id,
)


def page(
    session: Session, query: InteractionUsageQuery, *, tenant_id: str | None, app_id: str | None
) -> InteractionPage:
    """Return a page of the ended interactions within a tenant and an app; None for all.

    The days of the query are those of the opening.
    """
    newest = select(LedgerInteraction).where(*_where(query, tenant_id, app_id)).order_by(*_NEWEST)
    runs, total = read_page(session, newest, query)
    return InteractionPage.of(_items(session, runs), total, query)


def count(
    session: Session, query: InteractionUsageQuery, *, tenant_id: str | None, app_id: str | None
) -> int:
    """Return the number of ended interactions."""
    return count_rows(session, select(LedgerInteraction).where(*_where(query, tenant_id, app_id)))


def after(
    session: Session,
    query: InteractionUsageQuery,
    last: InteractionUsage | None,
    *,
    tenant_id: str | None,
    app_id: str | None,
    rows: int,
) -> list[InteractionUsage]:
    """Return ``rows`` interactions after ``last``, in the order of :func:`page`; None is the start.

    The cost is independent of the depth. ``limit`` and ``offset`` of the query are ignored.
    """
    where = _where(query, tenant_id, app_id)
    if last is not None:
        names = tuple_(LedgerInteraction.id, LedgerInteraction.app_id, LedgerInteraction.tenant_id)
        same_time = LedgerInteraction.opened_at == last.opened_at
        where += [
            LedgerInteraction.opened_at <= last.opened_at,  # this condition uses the index
            or_(
                LedgerInteraction.opened_at < last.opened_at,
                and_(same_time, names > (last.interaction, last.app, last.tenant)),
            ),
        ]
    runs = session.scalars(
        select(LedgerInteraction).where(*where).order_by(*_NEWEST).limit(rows)
    ).all()
    return _items(session, runs)


def _where(
    query: InteractionUsageQuery, tenant_id: str | None, app_id: str | None
) -> list[ColumnElement[bool]]:
    begin_s, end_s = day_bounds(query.first_day, query.last_day, zone_named(query.zone))
    where: list[ColumnElement[bool]] = [LedgerInteraction.shared_by.is_(None)]
    for column, value in (
        (LedgerInteraction.tenant_id, tenant_id),
        (LedgerInteraction.app_id, app_id),
        (LedgerInteraction.user_id, query.user),
        (LedgerInteraction.state, query.state),
    ):
        if value is not None:
            where.append(column == value)
    if begin_s is not None:
        where.append(LedgerInteraction.opened_at >= datetime.fromtimestamp(begin_s, UTC))
    if end_s is not None:
        where.append(LedgerInteraction.opened_at < datetime.fromtimestamp(end_s, UTC))
    return where


def _items(session: Session, runs: Sequence[LedgerInteraction]) -> list[InteractionUsage]:
    used = _used(session, runs)
    return [
        view_of(
            InteractionUsage,
            run,
            interaction=run.id,
            waste_cause=run.waste_cause or None,
            **used.get((run.tenant_id, run.app_id, run.id), _UNUSED),
        )
        for run in runs
    ]


def _used(
    session: Session, runs: Sequence[LedgerInteraction]
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return counts, service and cost of the charged calls of each run."""
    key = (LedgerCall.tenant_id, LedgerCall.app_id, LedgerCall.interaction_id)
    sums = [
        sum_of(case((LedgerCall.charged, each), else_=0))
        for each in (*_COUNTS.values(), LedgerCall.service, LedgerCall.cost)
    ]
    used = {}
    wanted = [(run.tenant_id, run.app_id, run.id) for run in runs]
    for begin in range(0, len(wanted), 200):
        some = wanted[begin : begin + 200]
        ids = [interaction_id for _, _, interaction_id in some]
        found = session.execute(
            select(*key, *sums)
            .where(and_(LedgerCall.interaction_id.in_(ids), tuple_(*key).in_(some)))
            .group_by(*key)
        )
        for tenant, app, interaction_id, *numbers, service, cost in found:
            counts = {name: int(each) for name, each in zip(_COUNTS, numbers, strict=True)}
            counts["input_tokens"] += counts["system_tokens"]  # stored separately
            used[tenant, app, interaction_id] = {
                **counts,
                "service": float(service),
                "cost": Decimal(int(cost)).scaleb(-9),
            }
    return used
