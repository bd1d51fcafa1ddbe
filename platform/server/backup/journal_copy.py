"""A copy of the journal that fits a copy of the database, while a server writes both.

A restored server writes the whole journal into the database again, by ids, as one does after a failure
of the machine. So the journal must be the newer of the two: then each row ends in its last state. With
the opposite order the entries of a call that was open at first would make a finished row a failed one.

The server deletes a segment once its rows are committed. One that is deleted after the database was
copied may have rows that the copy lacks. Therefore the segments are held by hard links first:

1. Hold the present segments. Those that are gone by now are committed, so the copy will have them.
2. Copy the database.
3. Copy the held segments, which have grown, and the newer ones.

Every call that was accepted before the first step is in the database's copy or in the journal's. If the
server has begun and deleted a segment between the steps, :class:`SegmentsLostError` asks to repeat.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fairserve.platform.control.journal.segments import segment_numbers, segment_path
from fairserve.platform.control.rejected_rows import REJECTED


class SegmentsLostError(Exception):
    """The server deleted segments that were not held."""


class JournalCopy:
    """Copies the journal in ``folder``. ``scratch`` is an empty folder on the same file system."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder = folder
        self._scratch = scratch

    def hold(self) -> None:
        """Hold the present segments. Raises OSError."""
        for number in segment_numbers(self._folder):
            with suppress(FileNotFoundError):  # deleted: it is in the database
                os.link(segment_path(self._folder, number), segment_path(self._scratch, number))

    def copy_to(self, folder: Path) -> Iterator[Path]:
        """Copy the held segments and the newer ones, and yield the copies.

        Raises SegmentsLostError and OSError.
        """
        held = segment_numbers(self._scratch)
        numbers = sorted({*held, *segment_numbers(self._folder)})
        if held and numbers != list(range(numbers[0], numbers[-1] + 1)):
            raise SegmentsLostError
        for number in numbers:
            source = self._scratch if number in held else self._folder
            copy = segment_path(folder, number)
            try:
                shutil.copyfile(segment_path(source, number), copy)
            except FileNotFoundError as error:
                raise SegmentsLostError from error
            yield copy
        rejected = self._folder / REJECTED
        if rejected.exists():
            yield Path(shutil.copyfile(rejected, folder / REJECTED))
