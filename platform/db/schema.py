"""The schema's revision: upgrading it, and refusing to serve on one that does not fit.

A revision is a number. Migrations expand first, so a server can work with a newer schema than its own,
unless a contracting migration raised ``schema_info.min_reader`` beyond it or marked the schema as
incompatible. It starts on a newer one only where the operator allows it (``accept_newer_schema``),
because what it does not know of is then not written; a running server continues. Upgrades of
several processes at once are put in order by a lock that the transaction holds: the write lock on
SQLite, an advisory lock on PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, select, text

import fairserve.migrations
from fairserve.platform.db.operations import SchemaInfo

UPGRADE_COMMAND = "fairserve db upgrade"
_LOCK_ID = 0x66616972
"""Key of PostgreSQL's advisory lock; any number that nothing else uses."""


class SchemaError(Exception):
    """The database's schema does not fit this server. The message names the next step."""


def alembic_config() -> Config:
    """Alembic's configuration, built from the installed package: there is no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(fairserve.migrations.__path__)))))
    return config


def required_revision() -> int:
    """Return the newest revision that this server has a migration for, and the oldest accepted."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    return int(head or 0)


def current_revision(engine: Engine) -> int:
    """Return the revision of the database; 0 if it has none."""
    with engine.connect() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> int:
    revision = MigrationContext.configure(connection).get_current_revision() or "0"
    if not revision.isdecimal():
        raise SchemaError(f"the database has schema revision {revision!r}, which is none of ours")
    return int(revision)


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring the schema to a revision, in one transaction. Safe from several processes at once.

    Raises SchemaError if the database is already newer than this server knows.
    """
    with engine.connect() as connection:
        if _revision(connection) > required_revision():
            raise SchemaError(
                f"the database has schema revision {_revision(connection)}, and this version"
                f" of FairServe knows up to {required_revision()}: install the newer version"
            )
    _migrate(engine, revision, up=True)


def downgrade(engine: Engine, revision: str) -> None:
    """Take the schema back to a revision (``base`` is empty); data of dropped tables is lost.

    Raises SchemaError for a revision that does not exist or is not below the present one.
    """
    wanted = 0 if revision == "base" else _number(revision)
    present = current_revision(engine)
    if not 0 <= wanted < present:
        raise SchemaError(
            f"cannot downgrade to {revision}: the database is at {present}; allowed: base, or"
            f" a revision below {present}"
        )
    _migrate(engine, "base" if wanted == 0 else f"{wanted:04d}", up=False)


def _number(revision: str) -> int:
    return int(revision) if revision.isdecimal() else -1


def _migrate(engine: Engine, revision: str, *, up: bool) -> None:
    config = alembic_config()
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            # Batch migrations copy and drop tables, which would cascade. Not inside a transaction.
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
    """Raise SchemaError if this version must not use the database, with the command that helps.

    ``accept_newer`` allows a newer schema that this version can read, as its ``min_reader`` says.
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
            " --accept-newer-schema while an upgrade or its return is in progress"
        )


def prepare(engine: Engine, *, create_if_empty: bool, accept_newer: bool = False) -> None:
    """Make the database ready for a start: create the schema if allowed, then :func:`check` it.

    ``create_if_empty`` is for the embedded database, where a newcomer should need no command. A
    schema that exists is never upgraded here: that is the operator's decision.
    """
    if create_if_empty and current_revision(engine) == 0 and not inspect(engine).get_table_names():
        upgrade(engine)
    check(engine, accept_newer=accept_newer)
