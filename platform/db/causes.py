"""Separates errors that the values of a statement cause from those of the database's state."""

from __future__ import annotations

from sqlalchemy.exc import (
    DBAPIError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)

_OF_VALUES = (
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    LookupError,
    RecursionError,
)
"""Errors of code that converts values, before the database sees them."""
_UNCLEAR = ("54", "SQLITE_ERROR")
"""States of operational errors that values may cause: a limit, such as the size of an index row, in
PostgreSQL; an overflow in SQLite, which has the same state for a missing table."""


def may_be_values(error: Exception) -> bool:
    """Return whether the values of a statement may have caused an error.

    False for errors that are certainly about the database: no connection, no space, a lost lease. True
    also for a schema that lacks a column: a statement with other values makes the difference.
    """
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return False
        if isinstance(error, OperationalError | InternalError):
            return _state_of(error.orig) in _UNCLEAR
        return True
    if isinstance(error, SQLAlchemyError):
        return isinstance(error, StatementError)  # a value that its column's type cannot convert
    return isinstance(error, _OF_VALUES)


def _state_of(error: BaseException | None) -> str:
    """Return the class of PostgreSQL's SQLSTATE, or the name of SQLite's error code."""
    state = getattr(error, "sqlstate", None)
    return str(state)[:2] if state else str(getattr(error, "sqlite_errorname", ""))
