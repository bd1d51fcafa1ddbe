"""Entries of the journal: six kinds, one JSON object a line, protected by a checksum.

``accepted`` carries the call's ledger row for the case that no other entry follows, ``progress`` its
usage since, ``closed`` the final row, ``interaction`` the row of a run that ended, and
``open_interaction`` that of an open one. A ``mark`` is a place in the log of a cell. A line is
``<crc32 of the rest, 8 hex digits> <JSON>``: a torn
or damaged line is recognised without trusting its length.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

Kind = Literal["accepted", "progress", "closed", "interaction", "open_interaction", "mark"]
TEXT_AT = 9
"""Place of the JSON in a line, whose first name is ``kind``."""
MAX_WHOLE = 2**63 - 1
KINDS: frozenset[Kind] = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of the journal. ``key`` is the ledger id of the call, or the id of the run."""

    kind: Kind
    key: str
    data: dict[str, Any]


def encode(kind: Kind, key: str, data: Mapping[str, Any]) -> bytes:
    """Return the line of an entry, with its line end. Numbers are cut to what a column can hold."""
    plain = {"kind": kind, "key": key, "data": data}
    try:
        text = orjson.dumps(plain)
    except TypeError:
        text = orjson.dumps(_bounded(plain))
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _bounded(value: Any) -> Any:
    """Return a plain value whose whole numbers have at most 64 bits."""
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(each) for each in value]
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        return MAX_WHOLE if value > 0 else -MAX_WHOLE
    return value


def decode(line: bytes) -> JournalEntry | None:
    """Return the entry of a line with its line end; None if the line is torn or damaged."""
    if len(line) < 10 or line[8:9] != b" " or not line.endswith(b"\n"):
        return None
    text = line[TEXT_AT:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(text):
            return None
        plain = orjson.loads(text)
        kind, key, data = plain["kind"], plain["key"], plain["data"]
    except (ValueError, KeyError, TypeError):
        return None
    return JournalEntry(kind, key, data) if kind in KINDS else None
