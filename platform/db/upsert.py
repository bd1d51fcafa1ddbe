"""Insert or replace rows, on both databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import String, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from fairserve.platform.db.base import Base


def upsert(session: Session, model: type[Base], rows: Iterable[dict[str, Any]]) -> None:
    """Insert rows or replace those with the same key; the last row of a key wins. The caller commits.

    Texts are truncated to their columns and sanitised so that both databases can store them.
    """
    table = model.__table__
    assert isinstance(table, Table)
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    key = [column.name for column in table.primary_key]
    # Truncated texts can make two keys equal.
    clean = (fitting(table, row) for row in rows)
    distinct = {tuple(row[name] for name in key): row for row in clean}
    if not distinct:
        return
    statement = insert(table)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=key,
            set_={
                column.name: statement.excluded[column.name]
                for column in table.columns
                if column.name not in key
            },
        ),
        list(distinct.values()),
    )


def fitting_text(text: str, chars: int | None) -> str:
    """Return a text truncated to ``chars`` and without characters that a database cannot store."""
    # PostgreSQL stores neither NUL nor half a surrogate pair.
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")[:chars]


def fitting(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its texts fitted to their columns."""
    fit = dict(row)
    for name, value in row.items():
        column = table.columns[name]
        if isinstance(value, str) and isinstance(column.type, String):
            fit[name] = fitting_text(value, column.type.length)
    return fit
