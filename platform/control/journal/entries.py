"""Entries of the journal: five kinds, one JSON object a line, protected by a checksum.

``accepted`` carries the call's ledger row for the case that no other entry follows, ``progress`` its
usage since, ``closed`` the final row, ``interaction`` the row of a run that ended, and
``open_interaction`` that of an open one. A line is ``<crc32 of the rest, 8 hex digits> <JSON>``: a torn
or damaged line is recognised without trusting its length.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

Kind = Literal["accepted", "progress", "closed", "interaction", "open_interaction"]
KINDS: frozenset[Kind] = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal. ``key`` is the ledger id of the call, or the id of the run."""

    kind: Kind
    key: str
    data: dict[str, Any]


def encode(entry: Entry) -> bytes:
    """Return the line of an entry, with its line end."""
    text = orjson.dumps({"kind": entry.kind, "key": entry.key, "data": entry.data})
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> Entry | None:
    """Return the entry of a line with its line end; None if the line is torn or damaged."""
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
