"""Upgrade the database schema, and reject a schema that this version must not use.

A revision is a number; those below the first migration's are of versions before the first release, whose
databases are rejected. Migrations expand first, so a server can work with a newer schema than its own,
unless a contracting migration raised ``schema_info.min_reader`` beyond it or marked the schema as
incompatible. It starts on a newer one only if the operator allows it (``accept_newer_schema``), because
it does not write the new columns; a running server continues. A lock held by the transaction serialises
concurrent upgrades: the write lock on SQLite, an advisory lock on PostgreSQL. Alembic is loaded by
upgrades only, not by a start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, select, text

import fairserve.migrations
from fairserve.platform.db.operations import SchemaInfo

if TYPE_CHECKING:
    from alembic.config import Config

UPGRADE_COMMAND = "fairserve db upgrade"
_LOCK_ID = 0x66616972
"""Key of PostgreSQL's advisory lock; an arbitrary unused number."""


class SchemaError(Exception):
    """The database's schema does not fit this server. The message names the next step."""


def alembic_config() -> Config:
    """Return Alembic's configuration, built from the installed package without an alembic.ini."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_migrations()))
    return config


def _migrations() -> Path:
    return Path(next(iter(fairserve.migrations.__path__)))


def revisions() -> list[int]:
    """Return the revisions of this server's migrations, with which the names of their files begin."""
    return sorted(int(path.name[:4]) for path in _migrations().glob("versions/[0-9]*.py"))


def required_revision() -> int:
    """Return the newest revision of this server's migrations, which is also the oldest accepted."""
    return revisions()[-1]


def is_unreleased(revision: int) -> bool:
    """Return whether a revision is of a version before the first release; no migration begins there."""
    return 0 < revision < revisions()[0]


def current_revision(engine: Engine) -> int:
    """Return the revision of the database; 0 if it has none.

    Raises SchemaError if the revision is not one of FairServe's releases.
    """
    with engine.connect() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> int:
    revision = "0"
    if inspect(connection).has_table("alembic_version"):
        stored = connection.scalar(text("SELECT version_num FROM alembic_version"))
        revision = str(stored or "0")
    if not revision.isdecimal():
        raise SchemaError(
            f"the database has schema revision {revision!r}, which is not FairServe's"
        )
    if is_unreleased(int(revision)):
        raise SchemaError(
            f"the database has schema revision {int(revision)}, of a version before the first"
            " release, and cannot be upgraded: start with a new data folder or database, and create"
            " tenants, apps and keys in it"
        )
    return int(revision)


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Upgrade the schema to a revision in one transaction. Safe in several processes at once.

    Raises SchemaError if the database is newer than this server's migrations.
    """
    with engine.connect() as connection:
        if _revision(connection) > required_revision():
            raise SchemaError(
                f"the database has schema revision {_revision(connection)}, and this version"
                f" of FairServe knows up to {required_revision()}: install the newer version"
            )
    _migrate(engine, revision, up=True)


def downgrade(engine: Engine, revision: str) -> None:
    """Downgrade the schema to a revision (``base`` is empty); data of dropped tables is lost.

    Raises SchemaError for a revision that does not exist or is not below the current one.
    """
    wanted = 0 if revision == "base" else _number(revision)
    present = current_revision(engine)
    if wanted not in (0, *revisions()) or wanted >= present:
        raise SchemaError(
            f"cannot downgrade to {revision}: the database is at {present}; allowed: base, or"
            f" a revision below {present}"
        )
    _migrate(engine, "base" if wanted == 0 else f"{wanted:04d}", up=False)


def _number(revision: str) -> int:
    return int(revision) if revision.isdecimal() else -1


def _migrate(engine: Engine, revision: str, *, up: bool) -> None:
    from alembic import command

    config = alembic_config()
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            # Batch migrations copy and drop tables, which would cascade. The pragma needs autocommit.
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA foreign_keys = OFF")
            cursor.close()
        try:
            with connection.begin():
                if engine.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _LOCK_ID})
                config.attributes["connection"] = connection
                if up:
                    command.upgrade(config, revision)
                else:
                    command.downgrade(config, revision)
        finally:
            # The pragma must not survive in the pool.
            connection.invalidate()


def check(engine: Engine, *, accept_newer: bool) -> None:
    """Raise SchemaError, naming the command to run, if this version must not use the database.

    ``accept_newer`` allows a newer schema whose ``min_reader`` includes this version.
    """
    required = required_revision()
    with engine.connect() as connection:
        present = _revision(connection)
        if present < required:
            what = f"schema revision {present}" if present else "no schema"
            raise SchemaError(
                f"the database has {what}, and this version needs {required}:"
                f" run `{UPGRADE_COMMAND}`"
            )
        info = connection.execute(
            select(SchemaInfo.min_reader, SchemaInfo.compatible)
        ).one_or_none()
    if info is None or not info.compatible:
        raise SchemaError(
            "the database's schema is marked as incompatible, because an upgrade is running or"
            f" was interrupted: run `{UPGRADE_COMMAND}` of the newest version"
        )
    if info.min_reader > required:
        raise SchemaError(
            f"the database's schema needs a server of revision {info.min_reader} or later, and"
            f" this one has {required}: install the newer version, then run `{UPGRADE_COMMAND}`"
        )
    if present > required and not accept_newer:
        raise SchemaError(
            f"the database has schema revision {present}, and this version has {required}: install"
            " the newer version, run its `fairserve db downgrade`, or start with"
            " --accept-newer-schema during a rolling upgrade or rollback"
        )


def prepare(engine: Engine, *, create_if_empty: bool, accept_newer: bool = False) -> None:
    """Prepare the database for a start: create the schema if allowed, then :func:`check` it.

    ``create_if_empty`` is for the embedded database, which a first start creates without a command. An
    existing schema is never upgraded here; the operator decides about that.
    """
    if create_if_empty and current_revision(engine) == 0 and not inspect(engine).get_table_names():
        upgrade(engine)
    check(engine, accept_newer=accept_newer)
