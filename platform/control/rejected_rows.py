"""Rows that the database rejects: kept in a file beside the journal, and counted.

A row of the file is the data of its journal entry with the reason. It is on disk before the ledger
passes it. A row that the journal repeats, after a restart of the machine, is kept once. Nothing deletes
the file but an operator.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import orjson

from fairserve.platform.control.journal.entries import Entry

REJECTED = "rejected.jsonl"
"""Name of the file in the journal's folder."""


class RejectedRows:
    """The file of one journal. ``keep`` belongs to one thread; ``count`` may be read by any."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / REJECTED
        self._kept: set[int] = set()
        """Hashes of the rows in the file."""

    @property
    def count(self) -> int:
        """Number of different rows in the file, as of the start and of this process."""
        return len(self._kept)

    def open(self) -> None:
        """Read which rows the file has. Cost: its size. Raises OSError."""
        try:
            with self.path.open("rb") as file:
                self._kept = {_key(plain) for plain in map(_plain, file) if plain is not None}
        except FileNotFoundError:
            self._kept = set()

    def keep(self, entry: Entry, reason: str) -> None:
        """Append a row unless the file has it, and sync. Raises OSError."""
        plain = {"kind": entry.kind, "data": entry.data, "reason": reason}
        line = orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE)
        key = _key(orjson.loads(line))
        if key in self._kept:
            return
        with self.path.open("a+b", buffering=0) as file:
            os.fchmod(file.fileno(), 0o600)
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line  # a crash has cut the last line
            if file.write(line) != len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(file.fileno())
        self._kept.add(key)


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
