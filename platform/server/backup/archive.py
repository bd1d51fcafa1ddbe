"""The archive of a backup: a compressed tar file, whose last member lists the others with checksums.

An archive without that list was cut short, and is rejected as a whole. It has secrets: it is written
with mode 0600, and appears under its name only once it is complete.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

MANIFEST = "manifest.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
_READ_BYTES = 1024 * 1024


class ArchiveError(Exception):
    """The archive cannot be written or used. The message names it and the next step."""


class FileEntry(BaseModel):
    """Size and checksum of one file."""

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """The last member of an archive."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[1]
    version: str
    """Version of FairServe that made the backup."""
    schema_revision: int
    created_at: str
    """Time (UTC) from which on calls may be missing."""
    has_database: bool
    secret_id: str
    """Id of the secret key, which reveals nothing about it."""
    files: dict[str, FileEntry]
    """By name in the archive."""


class ArchiveWriter:
    """Adds files to an open archive."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.files: dict[str, FileEntry] = {}

    def add(self, path: Path, name: str) -> None:
        """Add a file that nobody changes. Raises OSError."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            reader = _HashingReader(file)
            self._tar.addfile(_member(name, size), reader)  # type: ignore[arg-type] # it is only read
        self.files[name] = FileEntry(bytes=size, sha256=reader.digest.hexdigest())

    def finish(self, manifest: Manifest) -> None:
        """Add the manifest."""
        content = manifest.model_dump_json(indent=2).encode()
        self._tar.addfile(_member(MANIFEST, len(content)), io.BytesIO(content))


@contextmanager
def new_archive(path: Path, *, force: bool) -> Iterator[ArchiveWriter]:
    """Write an archive within the block; it gets its name if the block succeeds.

    Raises ArchiveError if the file exists, unless it may be replaced (``force``), and OSError.
    """
    if path.exists() and not force:
        raise _exists(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
                yield ArchiveWriter(tar)
            file.flush()
            os.fsync(file.fileno())
        if force:
            draft.replace(path)
        else:
            try:
                os.link(draft, path)
            except FileExistsError as error:
                raise _exists(path) from error
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def extract(path: Path, folder: Path) -> Manifest:
    """Extract all files into an empty folder, and verify them. Raises ArchiveError or OSError."""
    found: dict[str, FileEntry] = {}
    manifest: Manifest | None = None
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or not _is_safe(member.name):
                    raise ArchiveError(f"{path}: {member.name!r} cannot be in a backup")
                if member.name == MANIFEST:
                    manifest = _manifest(path, content.read(MAX_MANIFEST_BYTES))
                else:
                    found[member.name] = _write(content, folder / member.name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArchiveError(f"{path} is no backup, or is damaged: {error}") from error
    except ValueError as error:
        raise ArchiveError(f"{path} is damaged: {error}") from error
    if manifest is None:
        raise ArchiveError(f"{path} is not complete: its {MANIFEST} is missing")
    _compare(path, manifest, found)
    return manifest


def _manifest(path: Path, content: bytes) -> Manifest:
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ArchiveError(
            f"{path} has a manifest that this version cannot read: use the version of FairServe"
            " that made it, or a newer one"
        ) from error


def _compare(path: Path, manifest: Manifest, found: dict[str, FileEntry]) -> None:
    missing, extra = manifest.files.keys() - found.keys(), found.keys() - manifest.files.keys()
    changed = [name for name in found if manifest.files.get(name, found[name]) != found[name]]
    for what, names in (
        ("lacks", missing),
        ("has unknown files:", extra),
        ("has damaged", changed),
    ):
        if names:
            raise ArchiveError(f"{path} {what} {', '.join(sorted(names)[:3])}: use another backup")


def _write(content: IO[bytes], path: Path) -> FileEntry:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, size = _HashingReader(content), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while part := reader.read(_READ_BYTES):
            size += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(bytes=size, sha256=reader.digest.hexdigest())


class _HashingReader:
    """Computes the checksum of what is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def read(self, size: int) -> bytes:
        part = self._file.read(size)
        self.digest.update(part)
        return part


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(time.time())
    return member


def _is_safe(name: str) -> bool:
    """Return whether a name leads to a file below the folder."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\\" not in name


def _exists(path: Path) -> ArchiveError:
    return ArchiveError(f"{path} exists; choose another name, or replace it with --force")
