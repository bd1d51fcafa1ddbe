"""The files of the journal: segments of lines, numbered, and positions in them.

What is read here is durable: the reader is given the end up to which the writer has synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairserve.platform.control.journal.entries import Entry, decode


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the journal: entries before it have been read."""

    segment: int
    offset: int


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"journal-{number:012d}.jsonl"


def segment_numbers(folder: Path) -> list[int]:
    """The segments in a folder, oldest first."""
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("journal-*.jsonl"))


def create_segment(folder: Path, number: int) -> int:
    """A descriptor that writes a new segment; its name is on disk. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    descriptor = os.open(segment_path(folder, number), flags, 0o600)
    _sync_folder(folder)
    return descriptor


def read_entries(
    folder: Path, start: Position, end: Position, max_bytes: int
) -> Iterator[tuple[Entry | None, Position]]:
    """Entries from ``start`` to ``end``, each with the position after it; about ``max_bytes``.

    A damaged line gives None. A segment that is gone, or was never filled, is passed over.
    """
    taken = 0
    for number in segment_numbers(folder):
        if number < start.segment or number > end.segment:
            continue
        offset = start.offset if number == start.segment else 0
        limit = end.offset if number == end.segment else None
        with segment_path(folder, number).open("rb") as file:
            file.seek(offset)
            # Behind the end of the last segment is space that was allocated ahead: not to be read.
            while (limit is None or offset < limit) and (line := file.readline()):
                offset += len(line)
                if limit is not None and offset > limit:
                    return
                yield decode(line), Position(number, offset)
                taken += len(line)
                if taken >= max_bytes:
                    return
        if number < end.segment:
            # Finished with this one; without it an empty segment would hold the position back.
            yield None, Position(number + 1, 0)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
