"""Locks on files, which prove that no other server uses a data folder or a database file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockTakenError(Exception):
    """Another process holds the lock, or the file cannot be written. The message names it."""


@contextmanager
def held_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock on a file within the block. ``what`` names its subject. Raises LockTakenError."""
    try:
        file = path.open("a+")
    except OSError as error:
        raise LockTakenError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            pid = file.read().strip()
            who = f"process {pid}" if pid else "another process"
            raise LockTakenError(
                f"the {what} is in use by another FairServe server ({who});"
                " stop it, or choose another one"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
