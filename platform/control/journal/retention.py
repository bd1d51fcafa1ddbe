"""Segments that are still needed: those not in the ledger, and those in which an open call began.

A call that is open when the process ends is closed from its ``accepted`` entry, so the segment of that
entry is kept until the call has ended, and with it all later ones: the oldest is deleted first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fairserve.platform.control.journal.entries import Kind
from fairserve.platform.control.journal.segments import Position


@dataclass(slots=True)
class Segment:
    """A segment on disk. ``open_calls``: calls that were accepted in it and have not ended."""

    number: int
    size_bytes: int = 0
    open_calls: int = 0


class KeptSegments:
    """The segments on disk, oldest first. Not locked: callers that share it hold a lock."""

    def __init__(self) -> None:
        self._segments: deque[Segment] = deque()
        self.size_bytes = 0
        """Size of all segments together; read-only."""
        self._began: dict[str, Segment] = {}
        """The segment in which each open call was accepted."""
        self._ledgered = Position(0, 0)

    @property
    def newest_number(self) -> int:
        """Number of the newest segment; 0 if there is none."""
        return self._segments[-1].number if self._segments else 0

    def bytes_after(self, position: Position) -> int:
        """Return the bytes of all segments from ``position`` on."""
        newer = sum(each.size_bytes for each in self._segments if each.number > position.segment)
        own = (each for each in self._segments if each.number == position.segment)
        return newer + sum(max(0, each.size_bytes - position.offset) for each in own)

    def add(self, segment: Segment) -> None:
        """Add a segment that is newer than the others."""
        self._segments.append(segment)
        self.size_bytes += segment.size_bytes

    def grow(self, segment: Segment, more_bytes: int) -> None:
        """Add bytes to a kept segment."""
        segment.size_bytes += more_bytes
        self.size_bytes += more_bytes

    def count(self, kind: Kind, key: str, segment: Segment) -> None:
        """Count an entry of ``segment``, which may open or close a call."""
        if kind == "accepted":
            self._began[key] = segment
            segment.open_calls += 1
        elif kind == "closed":
            began = self._began.pop(key, None)
            if began is not None:
                began.open_calls -= 1

    def drop_ledgered(self, position: Position) -> list[int]:
        """Drop segments before ``position``, which are in the database; return those to delete.

        One more segment is kept, for a database that loses its last commits in a power failure.
        """
        self._ledgered = max(self._ledgered, position)
        dropped = []
        while len(self._segments) > 1:  # the last one is being written
            oldest = self._segments[0]
            if oldest.number >= self._ledgered.segment - 1 or oldest.open_calls:
                break
            self._segments.popleft()
            self.size_bytes -= oldest.size_bytes
            dropped.append(oldest.number)
        return dropped
