"""Checks of the database, the secret key and the journal. They change nothing."""

from __future__ import annotations

import contextlib
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from fairserve.platform.control.rejected_rows import REJECTED, count_rejected
from fairserve.platform.db import schema
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import (
    connect,
    database_files,
    normalise_url,
    read_only,
    session_factory,
)
from fairserve.platform.db.key_hash import KEY_FILE
from fairserve.platform.db.operations import ServerLease
from fairserve.platform.db.secret_key import SecretKeyError, matching_secret_id
from fairserve.platform.fleet.fleet import FleetPart
from fairserve.platform.fleet.repository import load_stored
from fairserve.platform.server.backup.archive import ArchiveError
from fairserve.platform.server.backup.restore import check_restored
from fairserve.platform.server.doctor.clocks import compared
from fairserve.platform.server.doctor.finding import Finding, fail, ok, warn
from fairserve.platform.server.settings import Settings


class DatabaseChecks:
    """Checks of one database; :attr:`stored` is the fleet that it has."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.stored = FleetPart()
        """Workers that were added through the API; read by the checks."""

    def run(self) -> Iterator[Finding]:
        """Yield the findings about database, schema, clock and secret key."""
        db = self._settings.db
        if self._lacks_secret:
            yield fail(
                "secret key",
                "FAIRSERVE_SECRET_KEY is not set",
                "set it to the same value on all servers of the database",
            )
        try:
            url = normalise_url(db.effective_database_url)
            if db.embedded_database and not Path(str(url.database)).exists():
                yield warn("database", f"there is no {url.database}", "the first start creates it")
                return
            engine = connect(db.effective_database_url, pool_size=1, create=False)
        except (ValueError, OSError) as error:
            yield fail("database", str(error), "correct --database-url or --data-dir")
            return
        try:
            yield from self._on(engine)
        except SQLAlchemyError as error:
            text = " ".join(str(getattr(error, "orig", None) or error).split())
            yield fail("database", text, "start the database, or correct --database-url")
        except schema.SchemaError as error:
            yield fail("schema", str(error), "")
        finally:
            engine.dispose()

    @property
    def _lacks_secret(self) -> bool:
        db = self._settings.db
        return db.secret_key is None and not db.embedded_database

    def _on(self, engine: Engine) -> Iterator[Finding]:
        present = schema.current_revision(engine)
        yield ok("database", f"{_name(engine)} answers")
        schema.check(engine, accept_newer=self._settings.db.accept_newer_schema)
        yield ok("schema", f"revision {present}, this version has {schema.required_revision()}")
        with session_factory(engine)() as session:
            read_only(session)
            yield ok("server", _holder(session))
            if engine.dialect.name == "postgresql":
                began = utc_now()
                theirs = session.scalar(select(func.clock_timestamp()))
                half_s = (utc_now() - began).total_seconds() / 2
                skew_s = (theirs - began).total_seconds() - half_s if theirs else 0.0
                yield compared("the database", skew_s, half_s)
            yield from self._secret_key(session)
            self.stored = load_stored(session).part

    def _secret_key(self, session: Session) -> Iterator[Finding]:
        db = self._settings.db
        if self._lacks_secret:
            return
        try:
            secret_id = matching_secret_id(session, db)
        except (SecretKeyError, ValueError, OSError) as error:
            yield fail("secret key", str(error), "")
            return
        if secret_id is None:
            yield ok("secret key", "none yet; the first start generates one")
            return
        if db.secret_key is not None:
            yield ok("secret key", "the setting matches the database")
            return
        file = db.data_dir / KEY_FILE
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield warn("secret key", f"others can read {file}", f"run chmod 600 {file}")
        else:
            yield ok("secret key", f"{file} matches the database")


def check_journal(settings: Settings) -> Iterator[Finding]:
    """Yield whether the journal can be written, with a temporary file, and has space."""
    data_dir = settings.db.data_dir
    try:
        check_restored(data_dir)
    except ArchiveError as error:
        yield fail("data folder", str(error), "")
    folder = _existing(data_dir / "journal")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        yield fail(
            "journal",
            f"{folder} cannot be written: {error.strerror}",
            "change its owner, free space, or choose another --data-dir",
        )
        return
    yield from _rejected_rows(folder)
    free_bytes = shutil.disk_usage(folder).free
    found = f"{folder} is writable, {free_bytes:,} bytes are free"
    needed = settings.control.journal_max_bytes
    if free_bytes < needed:
        yield warn("journal", found, f"free {needed:,} bytes, which is journal_max_bytes")
    else:
        yield ok("journal", found)


def check_private_files(settings: Settings) -> Iterator[Finding]:
    """Yield whether other users of the host can read the database, the journal or the recording."""
    data_dir = settings.db.data_dir
    files = [
        path
        for folder in (data_dir / "journal", data_dir / "recording")
        if _searchable(folder)
        for path in folder.iterdir()
    ]
    with contextlib.suppress(ValueError):
        url = normalise_url(settings.db.effective_database_url)
        if url.get_backend_name() == "sqlite":
            files += database_files(Path(str(url.database)))
    exposed = sorted(str(path) for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077)
    if exposed:
        yield warn(
            "private files",
            f"others can read {', '.join(exposed[:3])}"
            + (f" and {len(exposed) - 3} more" if len(exposed) > 3 else ""),
            "run chmod 600 on them, or start the server as their owner",
        )
    elif files:
        yield ok("private files", f"only their owner can read the {len(files)} files with data")


def _searchable(folder: Path) -> bool:
    """Return whether others can reach the files of a folder, as far as its own mode decides."""
    try:
        return folder.is_dir() and bool(stat.S_IMODE(folder.stat().st_mode) & 0o011)
    except OSError:
        return False


def _rejected_rows(folder: Path) -> Iterator[Finding]:
    try:
        number = count_rejected(folder)
    except OSError as error:
        yield warn("ledger", f"{folder / REJECTED} cannot be read: {error.strerror}", "")
        return
    if number:
        yield warn(
            "ledger",
            f"{number} rows that the database rejected are in {folder / REJECTED}",
            "read the reasons there; usage and budgets lack these calls. Then move the file away",
        )
    else:
        yield ok("ledger", "the database rejected no row")


def _existing(folder: Path) -> Path:
    """Return the folder, or the closest one above it that exists."""
    return next(each for each in (folder, *folder.absolute().parents) if each.is_dir())


def _name(engine: Engine) -> str:
    if engine.dialect.name == "sqlite":
        return f"SQLite {engine.url.database}"
    return f"PostgreSQL {engine.url.host or ''}/{engine.url.database or ''}"


def _holder(session: Session) -> str:
    row = session.get(ServerLease, 1)
    if row is None or not row.holder:
        return "none holds the database"
    age_s = (utc_now() - row.renewed_at).total_seconds()
    return f"{row.holder} holds the database, renewed {max(0.0, age_s):.0f} s ago"
