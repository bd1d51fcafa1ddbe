"""Rows that the database rejects: kept in a file beside the journal, and counted.

A row of the file is the data of its journal entry with the reason. It is on disk before the ledger
passes it. A row that the journal repeats, after a restart of the machine, is kept once. Nothing deletes
the file but an operator, so it is bounded: rows beyond ``MAX_BYTES`` are counted in its last line, and
their data are lost.

Weakness: a row beyond the bound that the journal repeats is counted again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import orjson

from fairserve.platform.control.journal.entries import JournalEntry

REJECTED = "rejected.jsonl"
"""Name of the file in the journal's folder."""
MAX_BYTES = 64 * 1024 * 1024
_MORE = "more"
"""Kind of the line that counts the rows beyond the bound."""


class RejectedRows:
    """The file of one journal. ``keep`` belongs to one thread; ``count`` may be read by any."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / REJECTED
        self._kept: set[int] = set()
        """Hashes of the rows in the file."""
        self._more = 0
        """Number of rows beyond the bound."""
        self._end = 0
        """Length of the file without the line that counts them."""

    @property
    def count(self) -> int:
        """Number of different rows that were set aside, as of the start and of this process."""
        return len(self._kept) + self._more

    def open(self) -> None:
        """Read which rows the file has. Cost: its size. Raises OSError."""
        self._kept, self._more, self._end = set(), 0, 0
        try:
            with self.path.open("rb") as file:
                for line in file:
                    self._read(line)
        except FileNotFoundError:
            pass

    def _read(self, line: bytes) -> None:
        plain = _plain(line)
        if plain is not None and plain.get("kind") == _MORE and isinstance(plain.get("rows"), int):
            self._more = int(str(plain["rows"]))
            return
        self._end += len(line)
        if plain is not None:
            self._kept.add(_key(plain))

    def keep(self, entry: JournalEntry, reason: str) -> None:
        """Append a row that the file lacks, and sync; a full file counts it. Raises OSError."""
        plain = {"kind": entry.kind, "data": entry.data, "reason": reason}
        line = orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE)
        key = _key(orjson.loads(line))
        if key in self._kept:
            return
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.fchmod(file, 0o600)
            if os.fstat(file).st_size < self._end:
                self.open()  # an operator has moved the file away, or has shortened it
            if self._end and os.pread(file, 1, self._end - 1) != b"\n":
                self._write(file, b"\n")  # a crash has cut the last line
                self._end += 1
            if self._more or self._end + len(line) > MAX_BYTES:
                counted = b'{"kind":"%s","rows":%12d}\n' % (_MORE.encode(), self._more + 1)
                self._write(file, counted)
                self._more += 1
            else:
                self._write(file, line)
                self._end += len(line)
                self._kept.add(key)
        finally:
            os.close(file)

    def _write(self, file: int, line: bytes) -> None:
        """Write a line at the end of the rows, and sync."""
        if os.pwrite(file, line, self._end) != len(line):
            os.ftruncate(file, self._end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(file)


def count_rejected(folder: Path) -> int:
    """Return the number of rejected rows beside a journal. Raises OSError."""
    rows = RejectedRows(folder)
    rows.open()
    return rows.count


def _plain(line: bytes) -> dict[str, object] | None:
    """Return the row of a line; None if the line is torn."""
    try:
        plain = orjson.loads(line)
    except ValueError:
        return None
    return plain if isinstance(plain, dict) else None


def _key(plain: dict[str, object]) -> int:
    """Return a hash of a row, without the reason, whose words may differ."""
    return hash(orjson.dumps([plain.get("kind"), plain.get("data")], option=orjson.OPT_SORT_KEYS))
