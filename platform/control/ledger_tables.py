"""The ledger's rows: the last record of each call and run, which a replay of the journal writes again.

A row has the value of each column from the record's field of that name, or of the name in ``_FIELDS``: a
new field of the ledger is a column and a field of its record. Texts that clients choose are truncated to
their columns, because a row that the database rejects would block the journal. The caller commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from functools import cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Executable, Table, delete
from sqlalchemy.orm import Session

from fairserve.platform.control.messages import (
    CallRecord,
    InteractionRecord,
    OpenInteractionRecord,
    Record,
)
from fairserve.platform.db.base import Base, UtcDateTime, utc_time
from fairserve.platform.db.ledger import (
    LedgerCall,
    LedgerInteraction,
    OpenInteraction,
    ThrottlingEvent,
)
from fairserve.platform.db.many_keys import in_keys, key_parameter
from fairserve.platform.db.rows import table_of
from fairserve.platform.db.upsert import fitting, upsert
from fairserve.platform.db.usage_marks import mark_ends_until_now, mark_rows

_OWNER = {"tenant_id": "tenant", "app_id": "app", "user_id": "user"}
_FIELDS: Mapping[type[Base], Mapping[str, str]] = {
    LedgerCall: _OWNER,
    LedgerInteraction: _OWNER | {"id": "interaction_id"},
    OpenInteraction: _OWNER | {"id": "interaction_id"},
    ThrottlingEvent: _OWNER
    | {
        "at": "accepted_at",
        "reason": "refusal_reason",
        "scope": "refusal_scope",
        "limit_count": "refusal_limit",
        "count": "refusal_count",
        "window_s": "refusal_window_s",
        "retry_after_s": "refusal_retry_after_s",
    },
}
"""The field of a record by column, where their names differ."""
_REFUSAL_INPUTS = tuple(
    each.name
    for each in table_of(ThrottlingEvent).columns
    if _FIELDS[ThrottlingEvent].get(each.name, each.name) not in CallRecord.__dataclass_fields__
)
"""Columns of the inputs of a rejection, by key of ``refusal_inputs``."""

Row = dict[str, Any]


def upsert_calls(session: Session, records: Sequence[CallRecord]) -> None:
    """Write calls, and the throttling event of each rejected one. The last record of an id wins."""
    calls = list(map(_writer(LedgerCall, CallRecord), records))
    upsert(session, LedgerCall, calls)
    mark_rows(session, calls, "accepted_at")  # a rejection has the time of its call
    event = _writer(ThrottlingEvent, CallRecord)
    refused = [
        event(record) | {name: (record.refusal_inputs or {}).get(name) for name in _REFUSAL_INPUTS}
        for record in records
        if record.outcome == "refused"
    ]
    upsert(session, ThrottlingEvent, refused)


def upsert_interactions(session: Session, records: Sequence[InteractionRecord]) -> None:
    """Write ended interactions. The last record of an app and id wins."""
    table, row = table_of(LedgerInteraction), _writer(LedgerInteraction, InteractionRecord)
    runs = [
        fitting(table, row(each) | ({"id": each.row_id} if each.row_id else {})) for each in records
    ]
    mark_ends_until_now(session, runs)
    upsert(session, LedgerInteraction, runs)
    mark_rows(session, runs, "ended_at")


def save_open_interactions(
    session: Session,
    ended: Sequence[InteractionRecord],
    opened: Sequence[OpenInteractionRecord],
) -> None:
    """Write the open interactions, and delete those that have ended."""
    table = table_of(OpenInteraction)
    if ended:
        over = (
            fitting(table, {"tenant_id": run.tenant, "app_id": run.app, "id": run.interaction_id})
            for run in ended
        )
        keys = key_parameter(tuple(each.values()) for each in over)
        session.connection().execute(_deleting(table, session.get_bind().dialect.name), keys)
    upsert(session, OpenInteraction, map(_writer(OpenInteraction, OpenInteractionRecord), opened))


@cache
def _deleting(table: Table, dialect: str) -> Executable:
    return delete(table).where(in_keys(list(table.primary_key), dialect))


@cache
def _writer(model: type[Base], kind: type[Record]) -> Callable[[Any], Row]:
    """Return the function that makes the row of a record, without the columns of ``_REFUSAL_INPUTS``.

    Times of a record are UTC seconds. A text that is empty by default is null then, where the column
    allows it. Cost of a row of 30 columns: 3 us.
    """
    columns = [
        column
        for column in table_of(model).columns
        if model is not ThrottlingEvent or column.name not in _REFUSAL_INPUTS
    ]
    names = [column.name for column in columns]
    fields = {name: _FIELDS[model].get(name, name) for name in names}
    read = attrgetter(*fields.values())
    times = [column.name for column in columns if isinstance(column.type, UtcDateTime)]
    defaults = {each.name: each.default for each in dataclass_fields(kind)}
    texts = [each.name for each in columns if each.nullable and defaults[fields[each.name]] == ""]

    def row(record: Any) -> Row:
        values = dict(zip(names, read(record)))  # noqa: B905  # a check of lengths costs 0.5 us
        for name in times:
            values[name] = utc_time(values[name])
        for name in texts:
            values[name] = values[name] or None
        return values

    return row
