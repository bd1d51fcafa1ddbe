"""Rename a user in the rollups, which outlive the raw rows."""

from __future__ import annotations

from sqlalchemy import and_, delete, func, insert, select
from sqlalchemy.orm import Session

from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.usage import UsageState
from fairserve.platform.db.usage_marks import mark
from fairserve.platform.reporting.usage.levels import (
    DAY_S,
    SPANS,
    TABLES,
    RollupTable,
    Span,
    fold,
    level,
)


def rename_user(sessions: SessionFactory, tenant_id: str, user_id: str, new_id: str) -> None:
    """Move a user's rows to another user id, merging them with existing rows.

    Each day is one transaction; a repetition finishes an interrupted renaming. Quarter hours with raw
    rows are marked, too, so that their next rollup agrees with the raw rows.
    """
    for table in TABLES:
        for day_s in _days(sessions, table, tenant_id, user_id):
            with sessions.begin() as session:
                state = session.scalars(
                    select(UsageState).with_for_update().execution_options(populate_existing=True)
                ).one()
                for span in SPANS:
                    starts = _rename(session, table, span, day_s, tenant_id, (user_id, new_id))
                    if span == "quarter":
                        mark(
                            session,
                            {(tenant_id, app, at) for app, at in starts if at >= state.raw_from_s},
                        )


def _days(sessions: SessionFactory, table: RollupTable, tenant_id: str, user_id: str) -> list[int]:
    column = table.table.c
    day = (column.start_s // DAY_S * DAY_S).label("day")
    levels = [level(span, "user") for span in SPANS]
    query = (
        select(func.distinct(day))
        .where(column.level.in_(levels), column.tenant_id == tenant_id, column.user_id == user_id)
        .order_by(day)
    )
    with sessions() as session:
        return [int(day_s) for day_s in read_only(session).scalars(query)]


def _rename(
    session: Session,
    table: RollupTable,
    span: Span,
    day_s: int,
    tenant_id: str,
    users: tuple[str, str],
) -> set[tuple[str, int]]:
    """Rename the rows of one level and day; return their apps and starts."""
    column = table.table.c
    where = and_(
        column.level == level(span, "user"),
        column.tenant_id == tenant_id,
        column.start_s >= day_s,
        column.start_s < day_s + DAY_S,
        column.user_id.in_(users),
    )
    order = [column.start_s, *(column[name] for name in table.keys)]
    rows = [
        dict(row) | {"user_id": users[1]}
        for row in session.execute(select(table.table).where(where).order_by(*order)).mappings()
    ]
    session.execute(delete(table.table).where(where))
    if rows:
        session.execute(insert(table.table), fold(table, rows, span, "user"))
    return {(row["app_id"], row["start_s"]) for row in rows}
