"""Conditions on many keys at a time: one statement for any number of them, which uses the table's index.

The keys are one parameter, a JSON text. SQLite reads the whole table for a list of pairs in SQL,
``(a, b) IN ((?, ?), ...)``, and a statement with as many parameters as keys is built anew for each
number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from sqlalchemy import JSON, ColumnElement, Text, bindparam, cast, func, select, tuple_

KEYS = "keys"
"""Name of the parameter."""


def in_keys(columns: Sequence[Any], dialect: str) -> ColumnElement[bool]:
    """Return the condition that text columns have one of the keys of the parameter ``KEYS``."""
    keys = bindparam(KEYS, type_=Text)
    parts: list[ColumnElement[Any]]
    if dialect == "postgresql":
        each = func.json_array_elements(cast(keys, JSON)).table_valued("value")
        parts = [each.c.value.op("->>")(place) for place in range(len(columns))]
    else:
        each = func.json_each(keys).table_valued("value")
        parts = [func.json_extract(each.c.value, f"$[{place}]") for place in range(len(columns))]
    return tuple_(*columns).in_(select(*parts))


def key_parameter(keys: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the parameter of :func:`in_keys`. Texts are as in the database (``fitting_text``)."""
    return {KEYS: orjson.dumps(list(map(tuple, keys))).decode()}
