"""Contents of files: in the database, or at any URL of fsspec, such as an S3-compatible bucket.

A store knows ids and bytes only; names, owners and bounds are rows in the database in both cases. All
methods block: call them in a thread. Memory: one part of a file for each reader and writer.

Weakness: a process that is killed while it writes to a bucket leaves an incomplete upload there, which
the bucket's own lifecycle rule has to abort.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Protocol

from sqlalchemy import delete, select

from fairserve.platform.db.batches import FilePart
from fairserve.platform.db.engine import SessionFactory, read_only

PART_BYTES = 256 * 1024
"""Bytes of a part in the database, and of one read elsewhere."""
DELETED_PARTS = 64
"""Parts that one transaction deletes."""


class FileWriter(Protocol):
    """Writes one file. Ends with :meth:`close` or :meth:`discard`."""

    def write(self, data: bytes) -> None:
        """Append bytes."""
        ...

    def close(self) -> None:
        """Complete the file."""
        ...

    def discard(self) -> None:
        """Delete what was written."""
        ...


class FileStore(Protocol):
    """Stores the contents of files."""

    def writer(self, file_id: str) -> FileWriter:
        """Return the writer of a new file."""
        ...

    def read(self, file_id: str) -> Iterator[bytes]:
        """Yield the content in pieces. No lock or transaction is held between two pieces."""
        ...

    def delete(self, file_id: str) -> None:
        """Delete a file, complete or not; unknown ids are ignored."""
        ...


def open_store(url: str, sessions: SessionFactory) -> FileStore:
    """Return the store at a URL; empty for the database. Raises ValueError as :func:`filesystem_at`."""
    found = filesystem_at(url)
    return DatabaseStore(sessions) if found is None else RemoteStore(*found)


def filesystem_at(url: str) -> tuple[Any, str] | None:
    """Return file system and folder of a store's URL; None if it is empty.

    Raises ValueError for a URL that fsspec cannot open, without the URL, which may hold a password.
    """
    if not url:
        return None
    import fsspec

    try:
        filesystem, folder = fsspec.core.url_to_fs(url)
    except Exception as error:  # some connect at once, and each raises errors of its own
        scheme = url.partition("://")[0]
        raise ValueError(
            f"file_store_url with {scheme}:// cannot be opened ({type(error).__name__}); for s3://"
            " install 'fairserve[s3]'"
        ) from error
    return filesystem, folder


class DatabaseStore:
    """Stores files as rows, each part in its own transaction."""

    def __init__(self, sessions: SessionFactory) -> None:
        self._sessions = sessions

    def writer(self, file_id: str) -> FileWriter:
        """Return the writer of a file whose row exists."""
        return _DatabaseWriter(self, self._sessions, file_id)

    def read(self, file_id: str) -> Iterator[bytes]:
        """Yield the parts of a file."""
        number = 0
        while True:
            with self._sessions() as session:
                data = read_only(session).scalar(
                    select(FilePart.data).where(
                        FilePart.file_id == file_id, FilePart.number == number
                    )
                )
            if data is None:
                return
            yield data
            number += 1

    def delete(self, file_id: str) -> None:
        """Delete the parts of a file, the last ones first, in short transactions."""
        while True:
            with self._sessions.begin() as session:
                numbers = session.scalars(
                    select(FilePart.number)
                    .where(FilePart.file_id == file_id)
                    .order_by(FilePart.number.desc())
                    .limit(DELETED_PARTS)
                ).all()
                if not numbers:
                    return
                session.execute(
                    delete(FilePart).where(
                        FilePart.file_id == file_id, FilePart.number.in_(numbers)
                    )
                )


class _DatabaseWriter:
    def __init__(self, store: DatabaseStore, sessions: SessionFactory, file_id: str) -> None:
        self._store, self._sessions, self._file_id = store, sessions, file_id
        self._pending = bytearray()
        self._number = 0

    def write(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= PART_BYTES:
            self._write_part(PART_BYTES)

    def close(self) -> None:
        if self._pending:
            self._write_part(len(self._pending))

    def discard(self) -> None:
        self._store.delete(self._file_id)

    def _write_part(self, size_bytes: int) -> None:
        data = bytes(self._pending[:size_bytes])
        with self._sessions.begin() as session:
            session.add(FilePart(file_id=self._file_id, number=self._number, data=data))
        del self._pending[:size_bytes]
        self._number += 1


class RemoteStore:
    """Stores each file as one object of an fsspec file system, named by its id."""

    def __init__(self, filesystem: Any, folder: str) -> None:
        self._filesystem = filesystem
        self._folder = folder.rstrip("/")
        self._local = getattr(filesystem, "auto_mkdir", None) is False
        """True for a local folder, not a bucket."""
        if self._local:
            filesystem.makedirs(self._folder, exist_ok=True)

    def writer(self, file_id: str) -> FileWriter:
        """Return the writer of an object; a local file is readable by its owner only."""
        if self._local:
            os.close(os.open(self._path(file_id), os.O_WRONLY | os.O_CREAT, 0o600))
        return _RemoteWriter(self, self._filesystem.open(self._path(file_id), "wb"), file_id)

    def read(self, file_id: str) -> Iterator[bytes]:
        """Yield the content of an object."""
        with self._filesystem.open(self._path(file_id), "rb", block_size=PART_BYTES) as content:
            while piece := content.read(PART_BYTES):
                yield piece

    def delete(self, file_id: str) -> None:
        """Delete an object."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(self._path(file_id))

    def _path(self, file_id: str) -> str:
        return f"{self._folder}/{file_id}"


class _RemoteWriter:
    def __init__(self, store: RemoteStore, content: Any, file_id: str) -> None:
        self._store, self._content, self._file_id = store, content, file_id

    def write(self, data: bytes) -> None:
        self._content.write(data)

    def close(self) -> None:
        self._content.close()

    def discard(self) -> None:
        # Closing completes the object; an open multipart upload could not be deleted by its name.
        with contextlib.suppress(OSError):
            self._content.close()
        self._store.delete(self._file_id)
