"""Queries on rejections, with the state that they were decided on.

Operators read all rejections, others their own. Model and agent come from the ledger's row of the call.
Pages and counts use an index; filters by user, run or reason scan all rejections of the tenant or app.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Select, case, distinct, func, select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db.ledger import LedgerCall, ThrottlingEvent
from fairserve.platform.db.rows import count
from fairserve.platform.db.schemas import Page, view_of
from fairserve.platform.tuning import repository
from fairserve.platform.tuning.explanation import explain
from fairserve.platform.tuning.schemas import EventOut, EventQuery, RejectionOut

MOST_GROUPS = 20
_OF_CALL = (LedgerCall.model, LedgerCall.served_model, LedgerCall.agent)
_MONEY = ("budget_limit", "budget_spent", "budget_held", "call_cost")

EventRows: TypeAlias = "Select[ThrottlingEvent, str, str | None, str | None]"


def page(
    session: Session, query: EventQuery, *, tenant_id: str | None, app_id: str | None
) -> Page[EventOut]:
    """Return a page of the rejections within a tenant and an app, newest first; None for all."""
    items = listed(session, query, tenant_id=tenant_id, app_id=app_id)
    total = count(session, select(ThrottlingEvent).where(*_where(query, tenant_id, app_id)))
    return Page.of(items, total, query)


def listed(
    session: Session, query: EventQuery, *, tenant_id: str | None, app_id: str | None
) -> list[EventOut]:
    """Return the rejections of :func:`page` without the count."""
    found = session.execute(rows(query, tenant_id=tenant_id, app_id=app_id))
    return [_out(event, model, served, agent) for event, model, served, agent in found]


def rows(query: EventQuery, *, tenant_id: str | None, app_id: str | None) -> EventRows:
    """Return the query of a page: events with model, served model and agent of the call."""
    return (
        _events()
        .where(*_where(query, tenant_id, app_id))
        .order_by(ThrottlingEvent.at.desc(), ThrottlingEvent.call_id.desc())
        .limit(query.limit)
        .offset(query.offset)
    )


class RejectionGroup(NamedTuple):
    """The rejections of one app for one reason."""

    tenant: str
    app: str
    reason: str
    rejected: int
    """All rejected calls, also those without a row of their own."""
    recent: int
    """Those of the second half of the period."""
    users: int
    """Users of the calls with rows of their own."""
    limit: int | None
    """Highest limit, and its window in seconds; None for reasons without one."""
    window_s: float | None
    first_at: datetime
    last_at: datetime
    example: str | None
    """Id of one of the latest calls; None if none has a row of its own."""


def groups(
    session: Session, query: EventQuery, since: datetime, until: datetime
) -> list[RejectionGroup]:
    """Return the rejections of a period by tenant, app and reason, most calls first.

    Cost: O(rejections of the period), by an index on time, with the tenant or app where one is named.
    """
    event = ThrottlingEvent
    calls = func.coalesce(event.shared_by, 1)
    middle = since + (until - since) / 2
    owned = {event.tenant_id: query.tenant, event.app_id: query.app}
    where = [column == value for column, value in owned.items() if value is not None]
    rejected = func.sum(calls).label("rejected")
    statement = (
        select(
            event.tenant_id,
            event.app_id,
            event.reason,
            rejected,
            func.sum(case((event.at >= middle, calls), else_=0)),
            func.count(distinct(case((event.shared_by.is_(None), event.user_id)))),
            func.max(event.limit_count),
            func.max(event.window_s),
            func.min(event.at),
            func.max(event.at),
            func.max(case((event.shared_by.is_(None), event.call_id))),
        )
        .where(event.at >= since, event.at < until, *where)
        .group_by(event.tenant_id, event.app_id, event.reason)
        .order_by(rejected.desc(), event.tenant_id, event.app_id, event.reason)
        .limit(MOST_GROUPS)
    )
    return [RejectionGroup(*row) for row in session.execute(statement)]


def one(
    session: Session,
    call_id: str,
    *,
    tenant_id: str | None,
    app_id: str | None,
    currency: str,
) -> RejectionOut:
    """Return a rejection. Raises NotFoundError, also for a rejection of another tenant or app."""
    where = [ThrottlingEvent.call_id == call_id, *_owned(tenant_id, app_id)]
    row = session.execute(_events().where(*where)).one_or_none()
    if row is None:
        raise NotFoundError("there is no such rejection", param="call_id")
    stored, model, served_model, agent = row
    event = _out(stored, model, served_model, agent)
    return RejectionOut(
        **dict(event),
        throttling_version=repository.version_at(session, event.at),
        currency=currency,
        explanation=explain(event, currency),
    )


def _events() -> EventRows:
    same_call = LedgerCall.call_id == ThrottlingEvent.call_id
    return select(ThrottlingEvent, *_OF_CALL).outerjoin(LedgerCall, same_call)


def _owned(tenant_id: str | None, app_id: str | None) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [ThrottlingEvent.shared_by.is_(None)]
    if tenant_id is not None:
        where.append(ThrottlingEvent.tenant_id == tenant_id)
    if app_id is not None:
        where.append(ThrottlingEvent.app_id == app_id)
    return where


def _where(
    query: EventQuery, tenant_id: str | None, app_id: str | None
) -> list[ColumnElement[bool]]:
    wanted = {
        ThrottlingEvent.user_id: query.user,
        ThrottlingEvent.reason: query.reason,
        ThrottlingEvent.scope: query.scope,
        ThrottlingEvent.interaction_id: query.interaction_id,
    }
    where = _owned(tenant_id, app_id)
    where += [column == value for column, value in wanted.items() if value is not None]
    if query.mid_run is not None:
        where.append(ThrottlingEvent.mid_run.is_(query.mid_run))
    if query.since is not None:
        where.append(ThrottlingEvent.at >= query.since)
    if query.until is not None:
        where.append(ThrottlingEvent.at < query.until)
    return where


def _out(
    row: ThrottlingEvent, model: str | None, served_model: str | None, agent: str | None
) -> EventOut:
    amounts = {name: getattr(row, name) for name in _MONEY}
    return view_of(
        EventOut,
        row,
        model=model,
        served_model=served_model,
        agent=agent,
        limit=row.limit_count,
        **{
            name: None if nano is None else Decimal(nano).scaleb(-9)
            for name, nano in amounts.items()
        },
    )
