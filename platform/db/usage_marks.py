"""Record of the quarter hours that need a new rollup.

The ledger writes a mark in the same transaction as the rows. A run that continues after its end gets a
later end; then both quarter hours are marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Executable, Table, select
from sqlalchemy.orm import Session

from fairserve.platform.db.ledger import LedgerInteraction
from fairserve.platform.db.many_keys import in_keys, key_parameter
from fairserve.platform.db.rows import table_of
from fairserve.platform.db.upsert import fitting, insert_into
from fairserve.platform.db.usage import QUARTER_S, UsageDirty

Row = dict[str, Any]


def quarter_of(time: datetime) -> int:
    """Return the start of the quarter hour of a time, in UTC epoch seconds."""
    return int(time.timestamp()) // QUARTER_S * QUARTER_S


def mark_rows(session: Session, rows: Iterable[Row], time: str) -> None:
    """Mark the quarter hours of ledger rows by their column ``time``. The caller commits."""
    mark(session, {(row["tenant_id"], row["app_id"], quarter_of(row[time])) for row in rows})


def mark_ends_until_now(session: Session, rows: Sequence[Row]) -> None:
    """Mark the previous end time of each run whose row is about to be updated."""
    if rows:
        keys = key_parameter((row["tenant_id"], row["app_id"], row["id"]) for row in rows)
        found = session.connection().execute(_ends(session.get_bind().dialect.name), keys)
        ends = [dict(row) for row in found.mappings()]
        mark_rows(session, ends, "ended_at")


def mark(session: Session, quarters: Iterable[tuple[str, str, int]]) -> None:
    """Mark (tenant, app, start) as changed, in a fixed order, so that writers cannot deadlock."""
    table = table_of(UsageDirty)
    rows: list[dict[str, Any]] = [
        fitting(table, {"tenant_id": tenant, "app_id": app, "start_s": start_s, "marks": 1})
        for tenant, app, start_s in sorted(quarters)
    ]
    if not rows:
        return
    session.connection().execute(_counting(table, session.get_bind().dialect.name), rows)


@cache
def _ends(dialect: str) -> Executable:
    column = table_of(LedgerInteraction).c
    key = (column.tenant_id, column.app_id, column.id)
    return select(column.tenant_id, column.app_id, column.ended_at).where(in_keys(key, dialect))


@cache
def _counting(table: Table, dialect: str) -> Executable:
    return insert_into(table, dialect).on_conflict_do_update(
        index_elements=list(table.primary_key), set_={"marks": table.c.marks + 1}
    )
