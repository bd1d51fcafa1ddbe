"""Back up a server's data while it runs: database, journal, secret key and other files.

Not in a backup: locks, sockets, the id of the folder, and recorded traffic. A PostgreSQL database is
dumped by its own tools; a command given for that runs while the journal is held.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from fairserve.platform.base.version import product_version
from fairserve.platform.db import schema
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import normalise_url, read_only, session_factory
from fairserve.platform.db.key_hash import KEY_FILE
from fairserve.platform.db.secret_key import SecretKeyError, matching_secret_id
from fairserve.platform.db.settings import DbSettings
from fairserve.platform.reporting.traffic.segments import recording_folder
from fairserve.platform.server.backup.archive import (
    FORMAT,
    ArchiveError,
    ArchiveWriter,
    Manifest,
    new_archive,
)
from fairserve.platform.server.backup.journal_copy import JournalCopy, SegmentsLostError

DATABASE_NAME = "fairserve.sqlite3"
JOURNAL = "journal"
ATTEMPTS = 5
LOCK = "backup.lock"
SCRATCH = ".backup-"
REPLACED = "replaced-"
"""Prefix of the folders into which a restore moves what it replaces."""
_LEFT_OUT = frozenset({"serve.lock", "server.id", "sockets", LOCK, JOURNAL, KEY_FILE})


@dataclass(frozen=True)
class Options:
    """Choices of one backup."""

    force: bool = False
    without_database: bool = False
    dump_command: str = ""
    """Shell command that dumps the database at ``$DATABASE_URL``, instead of a copy in the archive."""


def back_up(path: Path, settings: DbSettings, engine: Engine, options: Options) -> Manifest:
    """Write the archive. Raises ArchiveError, SecretKeyError, OSError, or an error of the database."""
    data_dir = settings.data_dir
    leaves_out = options.without_database or bool(options.dump_command)
    if not settings.embedded_database and not leaves_out:
        raise ArchiveError(
            "the database is PostgreSQL, which pg_dump backs up: run this command with --dump"
            " 'pg_dump ...', or with --without-database after pg_dump (docs/guide/backup.md)"
        )
    if path.resolve().is_relative_to(data_dir.resolve()):
        raise ArchiveError(f"{path} is in the data folder; choose a file outside of it")
    with _one_at_a_time(data_dir), new_archive(path, force=options.force) as archive:
        revision, created_at = schema.current_revision(engine), utc_now()
        with session_factory(engine)() as session:
            secret_id = matching_secret_id(read_only(session), settings)
        if secret_id is None:
            raise SecretKeyError(f"{data_dir} has no secret key yet: start the server first")
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as copies:
            database = None if leaves_out else Path(str(engine.url.database))
            _copy_state(settings, Path(copies), database, options.dump_command)
            for copy in sorted(Path(copies).rglob("*")):
                if copy.is_file():
                    archive.add(copy, copy.relative_to(copies).as_posix())
        if settings.secret_key is None:
            archive.add(data_dir / KEY_FILE, KEY_FILE)
        _add_others(archive, data_dir, _database_files(settings))
        manifest = Manifest(
            format=FORMAT,
            version=product_version(),
            schema_revision=revision,
            created_at=created_at.isoformat(),
            has_database=database is not None,
            secret_id=secret_id,
            files=archive.files,
        )
        archive.finish(manifest)
        return manifest


def _copy_state(
    settings: DbSettings, copies: Path, database: Path | None, dump_command: str
) -> None:
    """Copy the journal and, if it is given, the database, so that they fit."""
    data_dir = settings.data_dir
    for _ in range(ATTEMPTS):
        shutil.rmtree(copies / JOURNAL, ignore_errors=True)
        (copies / JOURNAL).mkdir(mode=0o700)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=data_dir) as scratch:
            journal = JournalCopy(data_dir / JOURNAL, Path(scratch))
            journal.hold()
            if database is not None:
                copy_database(database, copies / DATABASE_NAME)
            if dump_command:
                _dump(dump_command, settings)
            try:
                for _ in journal.copy_to(copies / JOURNAL):
                    pass
            except SegmentsLostError:
                continue
            return
    raise ArchiveError(
        f"in {ATTEMPTS} attempts the journal was deleted faster than the database was copied;"
        " back up while fewer calls are made"
    )


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database as it is at one moment, beside its writers."""
    target.unlink(missing_ok=True)
    target.touch(mode=0o600)
    with (
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as reading,
        closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)
        # The copy needs no log beside it: one file has everything.
        writing.execute("PRAGMA journal_mode = DELETE")


def _dump(command: str, settings: DbSettings) -> None:
    """Run the command with the database's URL, whatever source it has, in the form of its own tools."""
    url = normalise_url(settings.effective_database_url)
    plain = url.set(drivername=url.get_backend_name()).render_as_string(hide_password=False)
    environment = os.environ | {"DATABASE_URL": plain}
    ended = subprocess.run(command, shell=True, check=False, env=environment)  # noqa: S602 # the operator's own command
    if ended.returncode:
        raise ArchiveError(f"the command of --dump failed with status {ended.returncode}")


def _database_files(settings: DbSettings) -> frozenset[str]:
    """Return the names of the database's files."""
    if not settings.embedded_database:
        return frozenset()
    name = Path(str(normalise_url(settings.effective_database_url).database)).name
    return frozenset(name + end for end in ("", "-wal", "-shm", "-journal", ".lock"))


def _add_others(archive: ArchiveWriter, data_dir: Path, database: frozenset[str]) -> None:
    """Add the files that are neither the state, nor made again by the next start."""
    recording = recording_folder(data_dir).name
    left_out = _LEFT_OUT | database | {recording}
    for entry in sorted(data_dir.iterdir()):
        if entry.name in left_out or entry.name.startswith((SCRATCH, REPLACED)):
            continue
        for file in [entry] if entry.is_file() else sorted(entry.rglob("*")):
            if file.is_file() and not file.is_symlink():
                with suppress(FileNotFoundError):  # deleted since it was listed
                    archive.add(file, file.relative_to(data_dir).as_posix())


@contextmanager
def _one_at_a_time(data_dir: Path) -> Iterator[None]:
    """Hold the lock of backups, and remove what a killed one left. Raises ArchiveError."""
    descriptor = os.open(data_dir / LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ArchiveError(f"another backup of {data_dir} is in progress") from error
        for left in data_dir.glob(f"{SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)
