"""Queries on rejections, with the state that they were decided on.

Operators read all rejections, others their own. Model and agent come from the ledger's row of the call.
Pages and counts use an index; filters by user, run or reason scan all rejections of the tenant or app.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TypeAlias

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db.ledger import LedgerCall, ThrottlingEvent
from fairserve.platform.db.rows import count
from fairserve.platform.db.schemas import Page, view_of
from fairserve.platform.tuning import repository
from fairserve.platform.tuning.explanation import explain
from fairserve.platform.tuning.schemas import EventOut, EventQuery, RejectionOut

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
