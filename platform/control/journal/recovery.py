"""Reads the journal after a stop: the calls that were left open, and the end of the good lines.

A write that was cut short by the end of the process or of the machine leaves a torn tail in the last
segment, which is cut off, as is space that was allocated ahead. Any other damaged line is skipped, and
only that line is lost.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairserve.platform.control.journal.entries import decode
from fairserve.platform.control.journal.retention import KeptSegments, Segment
from fairserve.platform.control.journal.segments import segment_numbers, segment_path

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenCall:
    """A call that was accepted and not closed when the journal was opened."""

    key: str
    accepted: dict[str, Any]
    progress: dict[str, Any] | None = None


def recover(folder: Path) -> tuple[KeptSegments, list[OpenCall]]:
    """Read all segments of a folder without a writer, and cut a torn tail. Raises OSError."""
    kept = KeptSegments()
    found: dict[str, OpenCall] = {}
    numbers = segment_numbers(folder)
    for number in numbers:
        segment = Segment(number)
        kept.add(segment)
        _read(segment_path(folder, number), segment, kept, found, last=number == numbers[-1])
    return kept, list(found.values())


def _read(
    path: Path, segment: Segment, kept: KeptSegments, found: dict[str, OpenCall], *, last: bool
) -> None:
    """Read a segment into ``kept`` and ``found``; ``last`` is true for the newest segment."""
    good_end = offset = 0
    damaged = 0
    unwritten = False
    with path.open("rb") as lines:
        for line in lines:
            offset += len(line)
            entry = decode(line)
            if entry is None:
                unwritten = not line.strip(b"\0")
                damaged += not unwritten
                continue
            good_end = offset
            kept.count(entry.kind, entry.key, segment)
            if entry.kind == "accepted":
                found[entry.key] = OpenCall(entry.key, entry.data)
            elif entry.kind == "progress" and entry.key in found:
                found[entry.key].progress = entry.data
            elif entry.kind == "closed":
                found.pop(entry.key, None)
    if (last or unwritten) and good_end < offset:
        with path.open("r+b") as file:
            file.truncate(good_end)
            os.fsync(file.fileno())
        offset = good_end
    elif damaged:
        logger.error("%s: %d damaged lines are skipped", path.name, damaged)
    kept.grow(segment, offset)
