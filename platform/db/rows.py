"""Common parts of queries: pages with their totals, counts, conditions on keys, deletion in parts."""

from __future__ import annotations

from collections.abc import Iterable
from operator import eq
from typing import Any

from sqlalchemy import ColumnElement, Delete, Select, Table, Update, and_, delete, func, select
from sqlalchemy.orm import Session

from fairserve.platform.db.base import Base
from fairserve.platform.db.many_keys import in_keys, key_parameter
from fairserve.platform.db.schemas import Paging


def table_of(model: type[Base]) -> Table:
    """Return the table of a model."""
    table = model.__table__
    assert isinstance(table, Table)
    return table


def has_key(model: type[Base], key: Iterable[object]) -> ColumnElement[bool]:
    """Return the condition for the rows whose primary key is ``key``, or begins with it."""
    return and_(*map(eq, table_of(model).primary_key, key))


def count(session: Session, statement: Select[*tuple[Any, ...]]) -> int:
    """Return the number of rows of a statement."""
    counting = statement.with_only_columns(func.count(), maintain_column_froms=True)
    return session.scalar(counting.order_by(None)) or 0


def read_page(
    session: Session, statement: Select[*tuple[Any, ...]], paging: Paging
) -> tuple[list[Any], int]:
    """Return a page of an ordered statement, and the number of all its rows.

    A row is an object, or a tuple if the statement selects several.
    """
    found = session.execute(statement.limit(paging.limit).offset(paging.offset))
    rows = found.scalars() if len(statement.column_descriptions) == 1 else found
    return list(rows.all()), count(session, statement)


def changed(session: Session, statement: Update | Delete) -> int:
    """Run a statement that no object in the session follows; return the number of changed rows."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return int(getattr(result, "rowcount", 0))


def delete_some(session: Session, model: type[Base], where: ColumnElement[bool], most: int) -> int:
    """Delete at most ``most`` rows, which keeps a transaction short; return their number.

    The key's columns are texts. The caller commits, and repeats it until the number is 0.
    """
    table = table_of(model)
    key = list(table.primary_key)
    keys = session.execute(select(*key).where(where).limit(most)).all()
    if not keys:
        return 0
    # The condition is repeated because a row may have changed since the read.
    chosen = delete(table).where(in_keys(key, session.get_bind().dialect.name), where)
    return int(session.connection().execute(chosen, key_parameter(map(tuple, keys))).rowcount)
