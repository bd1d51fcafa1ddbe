"""Sums over the ledger by tenant, app, user and UTC day; one statement, the same on both databases.

Groups are ordered by bytes, whatever the database's own collation is.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any, get_args

from sqlalchemy import ColumnElement, String, case, cast, collate, false, func, select
from sqlalchemy.orm import Session

from fairserve.platform.db.identity import App
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.usage.schemas import Group, Sums, UsageQuery, UsageReport, UsageRow
from fairserve.scheduling.events import CallOutcome

_TOKENS = ("input_tokens", "system_tokens", "cached_tokens", "extend_tokens", "output_tokens")


def report(
    session: Session, query: UsageQuery, *, tenant_id: str | None, app_id: str | None
) -> UsageReport:
    """The report that ``query`` asks for, within a tenant and an app; None is all of them."""
    conditions = _conditions(query, tenant_id, app_id)
    groups = list(query.group_by)
    if tenant_id is None and "user" in groups and "tenant" not in groups:
        groups.insert(0, "tenant")  # two tenants' users of one name are two users
    sums = _sums()
    total = session.execute(select(*sums).where(*conditions)).one()
    if not groups:
        row = UsageRow(**_row(total._mapping))
        return UsageReport(
            group_by=[],
            items=[row][query.offset :],
            total=1,
            limit=query.limit,
            offset=query.offset,
            sums=Sums(**_row(total._mapping)),
        )
    columns = [_column(session, group).label(group) for group in groups]
    grouped = select(*columns).where(*conditions).group_by(*columns)
    rows = session.execute(
        select(*columns, *sums)
        .where(*conditions)
        .group_by(*columns)
        .order_by(*columns)
        .limit(query.limit)
        .offset(query.offset)
    )
    return UsageReport(
        group_by=groups,
        items=[UsageRow(**_row(row._mapping)) for row in rows],
        total=session.scalar(select(func.count()).select_from(grouped.subquery())) or 0,
        limit=query.limit,
        offset=query.offset,
        sums=Sums(**_row(total._mapping)),
    )


def knows_app(session: Session, tenant_id: str, app_id: str) -> bool:
    """Whether the tenant has, or in the ledger had, this app."""
    present = select(App.id).where(App.id == app_id, App.tenant_id == tenant_id)
    past = (
        select(LedgerCall.call_id)
        .where(LedgerCall.app_id == app_id, LedgerCall.tenant_id == tenant_id)
        .limit(1)
    )
    return session.scalar(present) is not None or session.scalar(past) is not None


def _conditions(
    query: UsageQuery, tenant_id: str | None, app_id: str | None
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if tenant_id is not None:
        conditions.append(LedgerCall.tenant_id == tenant_id)
    if app_id is not None:
        conditions.append(LedgerCall.app_id == app_id)
    if query.user is not None:
        conditions.append(LedgerCall.user_id == query.user)
    if query.first_day is not None:
        conditions.append(LedgerCall.accepted_at >= _midnight(query.first_day))
    if query.last_day is not None:
        if query.last_day == date.max:
            return conditions
        conditions.append(LedgerCall.accepted_at < _midnight(query.last_day + timedelta(days=1)))
    return conditions


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _column(session: Session, group: Group) -> ColumnElement[Any]:
    postgresql = session.get_bind().dialect.name == "postgresql"
    if group == "day":
        if postgresql:
            return func.to_char(func.timezone("UTC", LedgerCall.accepted_at), "YYYY-MM-DD")
        # SQLite keeps times as text, in UTC: 2026-01-31 23:59:59.000000
        return func.substr(cast(LedgerCall.accepted_at, String), 1, 10)
    column = {
        "tenant": LedgerCall.tenant_id,
        "app": LedgerCall.app_id,
        "user": LedgerCall.user_id,
    }[group]
    return collate(column, "C") if postgresql else column.expression


def _sums() -> list[ColumnElement[Any]]:
    charged = LedgerCall.charged
    outcomes = [
        func.sum(case((charged & (LedgerCall.outcome == outcome), 1), else_=0)).label(outcome)
        for outcome in get_args(CallOutcome)
    ]
    tokens = [
        func.sum(case((charged, getattr(LedgerCall, name)), else_=0)).label(name)
        for name in _TOKENS
    ]
    used = LedgerCall.input_tokens + LedgerCall.system_tokens + LedgerCall.output_tokens
    return [
        func.sum(case((charged, 1), else_=0)).label("calls"),
        *outcomes,
        func.sum(case((charged == false(), 1), else_=0)).label("uncharged_calls"),
        *tokens,
        func.sum(case((charged, LedgerCall.service), else_=0.0)).label("service"),
        func.sum(case((charged & LedgerCall.wasted, used), else_=0)).label("wasted_tokens"),
    ]


def _row(found: Any) -> dict[str, Any]:
    """Sums over no rows are null, and PostgreSQL's sums of big integers are decimals."""
    row: dict[str, Any] = {}
    for name, value in found.items():
        if name in UsageRow.model_fields and name not in Sums.model_fields:
            row[name] = value
        else:
            row[name] = float(value or 0) if name == "service" else int(value or 0)
    return row
