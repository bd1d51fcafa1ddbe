"""Sums of whole numbers that never fail: at most the largest number that a column can hold.

SQLite raises an error when a sum exceeds 64 bits, and PostgreSQL when such a sum is stored. So a few
absurd rows would stop reports and rollups of everybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Float, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

MAX_WHOLE = 2**63 - 1
_HALF = 2**31


class bounded_sum(FunctionElement[int]):  # noqa: N801  # a function of SQL, as ``func.sum``
    """Sum of a column of whole numbers that are not negative; null without rows."""

    type = BigInteger()
    inherit_cache = True

    def __init__(self, column: ColumnElement[Any] | InstrumentedAttribute[Any]) -> None:
        super().__init__(column)


@compiles(bounded_sum, "postgresql")
def _in_postgresql(element: bounded_sum, compiler: SQLCompiler, **options: Any) -> str:
    value = compiler.process(element.clauses, **options)
    total = f"SUM({value})"
    return f"CAST(CASE WHEN {total} > {MAX_WHOLE} THEN {MAX_WHOLE} ELSE {total} END AS BIGINT)"


@compiles(bounded_sum)
def _in_sqlite(element: bounded_sum, compiler: SQLCompiler, **options: Any) -> str:
    """Add the upper and the lower halves of the numbers: neither sum overflows below 2^31 rows."""
    value = compiler.process(element.clauses, **options)
    upper, lower = f"SUM(({value}) / {_HALF})", f"SUM(({value}) % {_HALF})"
    whole = f"{upper} * {_HALF} + {lower}"
    return f"CASE WHEN {upper} + {lower} / {_HALF} >= 2 * {_HALF} THEN {MAX_WHOLE} ELSE {whole} END"


def sum_of(column: ColumnElement[Any] | InstrumentedAttribute[Any]) -> ColumnElement[Any]:
    """Return the sum of a column of numbers that are not negative; null without rows."""
    return func.sum(column) if isinstance(column.type, Float) else bounded_sum(column)


def bounded(numbers: Iterable[int]) -> int:
    """Return the sum of whole numbers; at most ``MAX_WHOLE``."""
    return min(sum(numbers), MAX_WHOLE)
