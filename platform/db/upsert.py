"""Insert or replace rows, on both databases.

Cost: about 7 us a row of 30 columns beside that of the driver. Building a statement takes longer than
writing twenty rows with it, so each table's is built once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import itemgetter
from typing import Any

from sqlalchemy import Column, Dialect, String, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from fairserve.platform.db.base import Base
from fairserve.platform.db.rows import table_of


def upsert(session: Session, model: type[Base], rows: Iterable[dict[str, Any]]) -> None:
    """Insert rows or replace those with the same key; the last row of a key wins. The caller commits.

    A row has all columns. Texts are truncated to their columns and sanitised so that both databases can
    store them. Raises KeyError for a missing column.
    """
    table = table_of(model)
    statement = _replacing(table, _Dialect(session.get_bind().dialect))
    # Truncated texts can make two keys equal.
    distinct = {statement.key(values): values for values in map(statement.values, rows)}
    if distinct:
        connection = session.connection()
        connection.exec_driver_sql(statement.sql, statement.parameters(distinct.values()))


def insert_into(table: Table, dialect: str) -> postgresql.Insert | sqlite.Insert:
    """Return an insert statement of the database's dialect, which knows what to do on a conflict."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


class _Dialect:
    """A dialect as a key: those of one name are equal."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Dialect) and self.dialect.name == other.dialect.name

    def __hash__(self) -> int:
        return hash(self.dialect.name)


class _Replacing:
    """The statement of a table, and the conversion of rows to its parameters.

    SQLAlchemy would convert each row by name, which takes as long as SQLite needs to store it.
    """

    def __init__(self, table: Table, dialect: Dialect) -> None:
        statement, key = insert_into(table, dialect.name), set(table.primary_key.columns)
        others = {
            each.name: statement.excluded[each.name] for each in table.columns if each not in key
        }
        compiled = statement.on_conflict_do_update(
            index_elements=list(table.primary_key), set_=others
        ).compile(dialect=dialect)
        self.sql = str(compiled)
        self._names = tuple(compiled.positiontup or table.columns.keys())
        self._by_name = compiled.positiontup is None
        self._convert = [
            (place, convert)
            for place, name in enumerate(self._names)
            if (convert := _converter(table.columns[name], dialect)) is not None
        ]
        self.key = itemgetter(*(self._names.index(each.name) for each in table.primary_key))

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the values of a row as the driver takes them."""
        values = [row[name] for name in self._names]
        for place, convert in self._convert:
            values[place] = convert(values[place])
        return values

    def parameters(self, rows: Iterable[list[Any]]) -> Any:
        """Return the parameters of rows of values."""
        if self._by_name:
            return [dict(zip(self._names, values, strict=True)) for values in rows]
        return [tuple(values) for values in rows]


def _converter(column: Column[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    if isinstance(column.type, String):
        chars = column.type.length
        return lambda value: fitting_text(value, chars) if isinstance(value, str) else value
    return column.type.dialect_impl(dialect).bind_processor(dialect)


@cache
def _replacing(table: Table, dialect: _Dialect) -> _Replacing:
    return _Replacing(table, dialect.dialect)


def fitting_text(text: str, chars: int | None) -> str:
    """Return a text truncated to ``chars`` and without characters that a database cannot store."""
    # PostgreSQL stores neither NUL nor half a surrogate pair.
    if text.isascii():
        if (chars is None or len(text) <= chars) and "\x00" not in text:
            return text
    else:
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\x00", "")[:chars]


def fitting(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its texts fitted to their columns. Raises KeyError for an unknown column."""
    lengths = _text_lengths(table)
    return {
        name: fitting_text(value, chars)
        if (chars := lengths[name]) != _NO_TEXT and isinstance(value, str)
        else value
        for name, value in row.items()
    }


_NO_TEXT = -1


@cache
def _text_lengths(table: Table) -> dict[str, int | None]:
    """Return the length of each column in characters, None without a limit, _NO_TEXT for other types."""
    return {
        column.name: column.type.length if isinstance(column.type, String) else _NO_TEXT
        for column in table.columns
    }
