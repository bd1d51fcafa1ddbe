"""Export everything stored about one end user, as one JSON document written page by page.

Each kind of row is a list under its name; a program includes its steps. An incomplete document is not
valid JSON and cannot be mistaken for the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from fairserve.platform.db.base import Base, utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.programs import ProgramStep
from fairserve.platform.db.responses import ConversationItem
from fairserve.platform.reporting.user_data.repository import (
    CONVERSATIONS,
    KINDS,
    PAGE_ROWS,
    PROGRAMS,
    RESPONSES,
    RecordKind,
    pages,
    parts,
)

_PARTS: Mapping[RecordKind, tuple[Any, ...]] = {
    PROGRAMS: ("steps", ProgramStep, "program_id", "kind", "name"),
    CONVERSATIONS: ("items", ConversationItem, "conversation_id", "position"),
}
"""Parts of a row in the document: name, table, column of the row's id, and order."""
PROGRAM_ROWS = 10
"""Programs or responses per page: they have texts."""


def export(sessions: SessionFactory, tenant_id: str, user: str) -> Iterator[bytes]:
    """Yield the parts of the document. Raises OperationalError if the database goes down."""
    head = {
        "object": "user_data",
        "tenant_id": tenant_id,
        "user": user,
        "exported_at": utc_now(),
    }
    yield orjson.dumps(head)[:-1]
    for kind in KINDS:
        yield b',"%s":[' % kind.name.encode()
        rows = PROGRAM_ROWS if kind in (PROGRAMS, RESPONSES) else PAGE_ROWS
        found = pages(sessions, kind, tenant_id, user, rows=rows)
        if kind in _PARTS:
            name, *of = _PARTS[kind]
            each = (row for page in found for row in page)
            yield from _joined(
                _with_parts(row, name, parts(sessions, of[0], row, *of[1:])) for row in each
            )
        else:
            yield from _joined(_written(page) for page in found)
        yield b"]"
    yield b"}\n"


def _with_parts(row: Base, name: str, parts: Iterable[Sequence[Base]]) -> Iterator[bytes]:
    """Yield a row with the rows of its parts as a list."""
    yield orjson.dumps(_plain(row))[:-1]
    yield b',"%s":[' % name.encode()
    yield from _joined(_written(page) for page in parts)
    yield b"]}"


def _joined(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    for number, item in enumerate(items):
        if number:
            yield b","
        yield from item


def _written(page: Sequence[Base]) -> Iterator[bytes]:
    yield b",".join(orjson.dumps(_plain(row)) for row in page)


def _plain(row: Base) -> dict[str, Any]:
    return {column.name: getattr(row, column.key) for column in row.__table__.columns}
