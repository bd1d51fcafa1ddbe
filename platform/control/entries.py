"""What the journal holds: four kinds of entries, one JSON object a line, guarded by a checksum.

``accepted`` carries the call's ledger row as it would be if nothing more were ever heard of it;
``progress`` what it has used since; ``closed`` the final row; ``interaction`` the row of a run that
ended. A line is ``<crc32 of the rest, 8 hex digits> <JSON>``: a torn or damaged line is told from a
good one without trusting its length.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

import orjson

from fairserve.platform.control.record import CallRecord, InteractionRecord

Kind = Literal["accepted", "progress", "closed", "interaction"]
KINDS = frozenset(("accepted", "progress", "closed", "interaction"))

R = TypeVar("R", CallRecord, InteractionRecord)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal. ``key`` is the ledger id of the call, or the id of the run."""

    kind: Kind
    key: str
    data: dict[str, Any]


def encode(entry: Entry) -> bytes:
    """The line of an entry, with its line end."""
    text = orjson.dumps({"kind": entry.kind, "key": entry.key, "data": entry.data})
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> Entry | None:
    """The entry of a line with its line end; None if the line is torn or damaged."""
    if len(line) < 10 or line[8:9] != b" " or not line.endswith(b"\n"):
        return None
    text = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(text):
            return None
        plain = orjson.loads(text)
        kind, key, data = plain["kind"], plain["key"], plain["data"]
    except (ValueError, KeyError, TypeError):
        return None
    return Entry(kind, key, data) if kind in KINDS else None


def plain_of(record: CallRecord | InteractionRecord) -> dict[str, Any]:
    """A record as an entry's data. Its fields are plain, so nothing is copied deeply."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def record_of(kind: type[R], data: Mapping[str, Any]) -> R:
    """A record from an entry; fields that a newer version wrote are left out.

    Raises TypeError if a field that it needs is missing.
    """
    known = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in known})


def stopped_record(
    accepted: Mapping[str, Any], progress: Mapping[str, Any] | None, ended_at: float
) -> CallRecord:
    """The ledger row of a call that was open when the server stopped.

    Its last progress is what it used; work of which nobody told is not charged to anyone.
    """
    record = record_of(CallRecord, {**accepted, **(progress or {})})
    return replace(
        record,
        outcome="failed",
        ended_at=max(ended_at, record.accepted_at),
        error="server stopped",
        wasted=record.input_tokens + record.system_tokens + record.output_tokens > 0,
    )
