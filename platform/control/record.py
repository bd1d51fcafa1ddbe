"""Records as the data of journal entries, and back.

Control makes exactly one :class:`CallRecord` per accepted or rejected call. The journal carries it, and
the ledger table stores it, upserted by ``call_id``. A journal entry holds the fields of a record as
plain values, so that versions can read each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, TypeVar, get_args

from fairserve.platform.control.messages import (
    CallRecord,
    InteractionRecord,
    OpenInteractionRecord,
    Record,
)

R = TypeVar("R", CallRecord, InteractionRecord, OpenInteractionRecord)
_NAMES: Mapping[type[Record], frozenset[str]] = {
    kind: frozenset(field.name for field in fields(kind)) for kind in get_args(Record)
}


def values_of(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function of an object of a dataclass to its fields' values, without copies: 1 us."""
    return attrgetter(*(field.name for field in fields(kind)))


_FIELDS = {
    kind: ([field.name for field in fields(kind)], values_of(kind)) for kind in get_args(Record)
}


def plain_of(record: Record) -> dict[str, Any]:
    """Return a record as the data of an entry. Its fields are plain and are not copied."""
    names, values = _FIELDS[type(record)]
    return dict(zip(names, values(record), strict=True))


def record_of(kind: type[R], data: Mapping[str, Any]) -> R:
    """Return the record of an entry; fields of newer versions are ignored.

    Raises TypeError if a field that it needs is missing.
    """
    known = _NAMES[kind]
    if data.keys() <= known:
        return kind(**data)
    return kind(**{name: value for name, value in data.items() if name in known})


def stopped_record(
    accepted: Mapping[str, Any], progress: Mapping[str, Any] | None, ended_at: float
) -> CallRecord:
    """Return the ledger row of a call that was open when the server stopped.

    Its usage is that of its last progress; later work is not charged.
    """
    record = record_of(CallRecord, {**accepted, **(progress or {})})
    return replace(
        record,
        outcome="failed",
        ended_at=max(ended_at, record.accepted_at),
        error="server stopped",
        wasted=record.input_tokens + record.system_tokens + record.output_tokens > 0,
    )
