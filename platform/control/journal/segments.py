"""The files of the journal: numbered segments of lines, and positions in them.

Only durable entries are read: the caller passes the position up to which the writer has synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairserve.platform.control.journal.entries import TEXT_AT, JournalEntry, Kind, decode


class Position(NamedTuple):
    """A position in the journal, after the entries that have been read."""

    segment: int
    offset: int


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment."""
    return folder / f"journal-{number:012d}.jsonl"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments in a folder, oldest first."""
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("journal-*.jsonl"))


def create_segment(folder: Path, number: int) -> int:
    """Create a segment whose name is on disk; return a descriptor to write it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    descriptor = os.open(segment_path(folder, number), flags, 0o600)
    _sync_folder(folder)
    return descriptor


def read_entries(
    folder: Path, start: Position, end: Position, max_bytes: int, *, but: Sequence[Kind] = ()
) -> Iterator[tuple[JournalEntry | None, Position]]:
    """Yield the entries from ``start`` to ``end`` with the positions after them, about ``max_bytes``.

    A damaged line yields None, as does an entry of the kinds in ``but``, which is not parsed. A segment
    that is missing, or was never filled, is skipped.
    """
    unwanted = tuple(b'{"kind":"%s"' % kind.encode() for kind in but)
    taken = 0
    for number in segment_numbers(folder):
        if number < start.segment or number > end.segment:
            continue
        offset = start.offset if number == start.segment else 0
        limit = end.offset if number == end.segment else None
        with segment_path(folder, number).open("rb") as file:
            file.seek(offset)
            # Behind the end of the last segment is allocated space without entries.
            while (limit is None or offset < limit) and (line := file.readline()):
                offset += len(line)
                if limit is not None and offset > limit:
                    return
                entry = None if line.startswith(unwanted, TEXT_AT) else decode(line)
                yield entry, Position(number, offset)
                taken += len(line)
                if taken >= max_bytes:
                    return
        if number < end.segment:
            # Without this step an empty segment would keep the position from advancing.
            yield None, Position(number + 1, 0)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
