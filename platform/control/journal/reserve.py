"""Disk space that is allocated before it is needed, so that a full disk loses no row.

The file of the open segment is allocated ahead. Every accepted call holds as much of that space as its
end can need, and new calls are rejected as soon as no more can be allocated. So the end of an accepted
call is always recorded, and a rejected call has caused no work.

Weakness: a file system that copies on write (btrfs, ZFS) may fail to overwrite space that it has
allocated; then rows wait in memory until space is free again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

CALL_BYTES = 128 * 1024
"""Free space that one more call needs: more than its entries can have, with 64 parents."""
END_BYTES = 4096
"""Space for the end of a call, in addition to the size of its ``accepted`` entry."""
STEP_BYTES = 1024 * 1024
"""Space that is allocated at a time beyond the need."""

Allocate = Callable[[int, int, int], None]
"""Allocates a range of a file: descriptor, offset, length. Raises OSError if the disk is full."""


def allocate(descriptor: int, offset: int, length: int) -> None:
    """Allocate a range of a file, whose size then includes it. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, offset, length)
        return
    zeros = memoryview(bytes(STEP_BYTES))  # on macOS
    while length > 0:
        written = os.pwrite(descriptor, zeros[:length], offset)
        offset, length = offset + written, length - written


class Reserve:
    """The space of the open segment, and how much of it each call holds. Not locked."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._end_bytes = 0
        self._held: dict[str, int] = {}
        self.held_bytes = 0
        """Space that is held for the ends of open calls."""

    def free_bytes(self, used_bytes: int) -> int:
        """Return the free space behind ``used_bytes`` of the segment; negative if there is none."""
        return self._end_bytes - used_bytes - self.held_bytes

    def grow(self, descriptor: int, used_bytes: int, need_bytes: int) -> None:
        """Allocate until ``need_bytes`` are free, and a step more if possible. Raises OSError."""
        end = used_bytes + self.held_bytes + need_bytes
        if end <= self._end_bytes:
            return
        try:
            self._extend(descriptor, end + STEP_BYTES)
        except OSError:
            self._extend(descriptor, end)

    def begin(self, descriptor: int, size_bytes: int, need_bytes: int) -> None:
        """Continue in a new file, of ``size_bytes`` if possible, with ``need_bytes`` free.

        Raises OSError, and keeps the previous file.
        """
        before, self._end_bytes = self._end_bytes, 0
        try:
            self.grow(descriptor, 0, max(need_bytes, size_bytes - self.held_bytes))
        except OSError:
            try:
                self.grow(descriptor, 0, need_bytes)
            except OSError:
                self._end_bytes = before
                raise

    def hold(self, key: str, accepted_bytes: int) -> None:
        """Hold space for the end of an accepted call; the caller has checked that it is free."""
        held = accepted_bytes + END_BYTES
        self.held_bytes += held - self._held.get(key, 0)
        self._held[key] = held

    def release(self, key: str) -> bool:
        """Release the space of a call that ended; return whether it held any."""
        held = self._held.pop(key, 0)
        self.held_bytes -= held
        return held > 0

    def _extend(self, descriptor: int, end: int) -> None:
        self._allocate(descriptor, self._end_bytes, end - self._end_bytes)
        self._end_bytes = end
