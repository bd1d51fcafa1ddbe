"""Restore a backup into a data folder of a stopped server.

The files are extracted beside the present ones, verified, and only then moved into place; what they
replace is moved into a folder of its own. A server does not start on a folder in which that move was
interrupted (:func:`check_restored`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairserve.platform.db import schema
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import normalise_url
from fairserve.platform.db.key_hash import KEY_FILE, KeyHasher
from fairserve.platform.db.settings import DbSettings
from fairserve.platform.server.backup.archive import ArchiveError, Manifest, extract
from fairserve.platform.server.backup.backup import DATABASE_NAME, LOCK, REPLACED, SCRATCH
from fairserve.platform.server.locks import held_lock

STAGED = ".restore"
"""Folder of extracted files; harmless if it is left behind."""
INCOMPLETE = "restore.incomplete"
"""Name of that folder while the files are moved into place."""


@dataclass(frozen=True)
class Restored:
    """The result of one restore."""

    manifest: Manifest
    replaced: Path | None
    """Folder of the former files."""


def restore(archive: Path, settings: DbSettings, *, force: bool) -> Restored:
    """Restore an archive into ``data_dir``. Raises ArchiveError, LockTakenError or OSError."""
    data_dir = settings.data_dir
    database = _database_name(settings)
    created = not data_dir.exists()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with _locks(data_dir, database):
            present = _present(data_dir, database)
            if present and not force:
                raise ArchiveError(
                    f"the data folder {data_dir} is not empty; choose another one with --data-dir, or"
                    f" replace its content with --force, which moves it into a folder {REPLACED}..."
                )
            staged = data_dir / STAGED
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(mode=0o700)
            try:
                manifest = extract(archive, staged)
                _check(manifest, settings)
                if manifest.has_database:
                    (staged / DATABASE_NAME).rename(staged / str(database))
                replaced = _move(data_dir, staged, present)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
    except BaseException:
        if created:
            _remove_empty(data_dir, database)
        raise
    return Restored(manifest, replaced)


def check_restored(data_dir: Path) -> None:
    """Raise ArchiveError if a restore into the folder was interrupted."""
    if (data_dir / INCOMPLETE).exists():
        raise ArchiveError(
            f"a restore into the data folder {data_dir} was interrupted: run `fairserve restore` again"
            " with --force"
        )


def _database_name(settings: DbSettings) -> str | None:
    """Return the name of the database in the data folder; None for PostgreSQL."""
    if not settings.embedded_database:
        return None
    path = Path(str(normalise_url(settings.effective_database_url).database))
    if path.resolve().parent != settings.data_dir.resolve():
        raise ArchiveError(
            f"the database {path} is not in the data folder: restore without database_url, then move"
            " the file"
        )
    return path.name


@contextmanager
def _locks(data_dir: Path, database: str | None) -> Iterator[None]:
    """Hold the locks that a server holds. Raises LockTakenError."""
    with ExitStack() as stack:
        stack.enter_context(held_lock(data_dir / "serve.lock", f"data folder {data_dir}"))
        if database is not None:
            path = data_dir / database
            stack.enter_context(held_lock(path.with_name(f"{database}.lock"), f"database {path}"))
        yield


def _present(data_dir: Path, database: str | None) -> list[Path]:
    """Return the entries that a restore replaces."""
    kept = {"serve.lock", f"{database}.lock", LOCK, STAGED, INCOMPLETE}
    return [
        entry
        for entry in sorted(data_dir.iterdir())
        if entry.name not in kept and not entry.name.startswith((REPLACED, SCRATCH))
    ]


def _check(manifest: Manifest, settings: DbSettings) -> None:
    """Raise ArchiveError if this version with these settings cannot use the backup."""
    newest = schema.required_revision()
    if manifest.schema_revision > newest:
        raise ArchiveError(
            f"the backup has schema revision {manifest.schema_revision}, and this version knows up to"
            f" {newest}: install FairServe {manifest.version} or newer"
        )
    if schema.is_unreleased(manifest.schema_revision):
        raise ArchiveError(
            f"the backup has schema revision {manifest.schema_revision}, of a version before the first"
            f" release, and cannot be upgraded: restore it with FairServe {manifest.version}"
        )
    if manifest.has_database and not settings.embedded_database:
        raise ArchiveError("the backup has an embedded database: restore it without database_url")
    if not manifest.has_database and settings.embedded_database:
        raise ArchiveError(
            "the backup has no database: set database_url to the database that pg_restore restored"
        )
    if settings.secret_key is not None:
        own = KeyHasher(settings.secret_key.get_secret_value().encode())
        if own.secret_id != manifest.secret_id:
            raise ArchiveError(
                "FAIRSERVE_SECRET_KEY is not the key of the backup: no API key of it would work"
            )


def _move(data_dir: Path, staged: Path, present: list[Path]) -> Path | None:
    """Move the former entries away and the extracted ones into place; return the former's folder."""
    incomplete = data_dir / INCOMPLETE
    shutil.rmtree(incomplete, ignore_errors=True)  # of an interrupted restore
    staged.rename(incomplete)
    _sync(data_dir)
    replaced = None
    if present:
        replaced = data_dir / f"{REPLACED}{utc_now():%Y%m%dT%H%M%S.%fZ}"
        replaced.mkdir(mode=0o700)
        for entry in present:
            entry.rename(replaced / entry.name)
    for entry in sorted(incomplete.iterdir()):
        entry.rename(data_dir / entry.name)
    _sync(data_dir)
    incomplete.rmdir()
    return replaced


def _remove_empty(data_dir: Path, database: str | None) -> None:
    """Remove a folder that this restore created, and that has only its locks."""
    for name in ("serve.lock", f"{database}.lock"):
        (data_dir / name).unlink(missing_ok=True)
    if not any(data_dir.iterdir()):
        data_dir.rmdir()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_key_file(data_dir: Path) -> bool:
    """Return whether the folder has a secret key."""
    return (data_dir / KEY_FILE).exists()
