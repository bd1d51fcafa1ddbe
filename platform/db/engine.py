"""Synchronous SQLAlchemy engine for PostgreSQL (psycopg 3) or SQLite in WAL mode.

On SQLite a transaction takes the write lock when it begins. Otherwise a transaction that reads before
it writes would fail at once, despite the busy time-out, if another one has written since. A session
that only reads calls :func:`read_only` and takes no lock.

A SQLite database holds prompts and hashes of keys. Its files are readable by their owner only, whatever
the mode of their folder is.

A session opens its connection with its first statement, and management's requests have connections of
their own (:mod:`fairserve.platform.base.bulkhead`). While the database does not answer, none begins
(:mod:`fairserve.platform.db.watch`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from fairserve.platform.base.bulkhead import is_management
from fairserve.platform.db.watch import DatabaseAwayError, DatabaseWatch

BUSY_TIMEOUT_S = 30
CONNECT_S = 10
"""Seconds after which a connection that PostgreSQL does not accept has failed."""
MANAGEMENT_CONNECT_S = 5
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Parameters of libpq, the last in ms: a dead connection to PostgreSQL fails within 25 s."""
READ_ONLY = "fairserve_read_only"
READ_ONLY_STATE = "25006"
"""PostgreSQL's SQLSTATE of a statement that would write in a transaction that may only read."""

SessionFactory = sessionmaker[Session]


def normalise_url(url: str) -> URL:
    """Return the URL with its driver. Raises ValueError, without the password, if it is not usable."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError(
            "the database URL cannot be read; write postgresql://user:password@host/name"
            " or sqlite:////path/to/file"
        ) from None
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if not parsed.database or parsed.database == ":memory:":
            raise ValueError("an in-memory SQLite database is not shared; name a file")
        return parsed.set(drivername="sqlite+pysqlite")
    raise ValueError(f"{parsed.drivername} databases are not supported; use postgresql or sqlite")


def connect(
    url: str, *, pool_size: int = 10, create: bool = True, connect_s: int = CONNECT_S
) -> Engine:
    """Return an engine for the database without opening a connection.

    ``create`` creates a SQLite file and its folder, and makes files that others can read private.
    Without it the file must exist, and nothing is changed. Raises ValueError for an unusable URL, for a
    missing SQLite file, or if PostgreSQL's driver is not installed; OSError if the folder cannot be
    created.
    """
    parsed = normalise_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        path = Path(parsed.database)
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            _keep_private(path)
        elif not path.exists():
            raise ValueError(
                f"there is no database at {path}; `fairserve serve` and `fairserve db upgrade`"
                " create one"
            )
        engine = create_engine(
            parsed,
            pool_size=pool_size,
            hide_parameters=True,  # errors are logged; parameters can be key hashes
            connect_args={"timeout": BUSY_TIMEOUT_S},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        engine = create_engine(
            parsed,
            pool_size=pool_size,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={
                "connect_timeout": connect_s,
                "options": "-c timezone=utc",
                **_KEEPALIVE,
            },
        )
    except ModuleNotFoundError:
        raise ValueError("PostgreSQL needs: pip install 'fairserve[postgres]'") from None
    event.listen(engine, "handle_error", _leave_standby)
    return engine


def database_files(path: Path) -> Iterator[Path]:
    """Yield the files of a SQLite database that exist: its own, and those that SQLite puts beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            yield file


def _keep_private(path: Path) -> None:
    """Create the file with mode 0600, which SQLite copies to those beside it, and correct old files."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for file in database_files(path):
        # Another user's file stays as it is: the doctor names it.
        with contextlib.suppress(PermissionError):
            file.chmod(0o600)


def management_engine(engine: Engine, *, pool_size: int = 10) -> Engine:
    """Return an engine for the same database, with connections of its own."""
    url = engine.url.render_as_string(hide_password=False)
    return connect(url, pool_size=pool_size, connect_s=MANAGEMENT_CONNECT_S)


def database_watch(management: Engine) -> DatabaseWatch:
    """Return the watch of the database of management's connections; it does not probe yet."""
    probe = management_engine(management, pool_size=1)
    return DatabaseWatch(probe.execution_options(**{READ_ONLY: True}), management)


class DatabaseSession(Session):
    """A session on the connections of the kind of work that opens it: calls or management."""

    def __init__(
        self,
        bind: Engine,
        management: Engine | None = None,
        watch: DatabaseWatch | None = None,
        **options: Any,
    ) -> None:
        """Raises DatabaseAwayError while the ``watch`` finds the database away."""
        if watch is not None and watch.away_since is not None:
            raise DatabaseAwayError
        own = bind if management is None or not is_management() else management
        super().__init__(own, **options)


def session_factory(
    engine: Engine, management: Engine | None = None, watch: DatabaseWatch | None = None
) -> SessionFactory:
    """Return a factory of sessions whose objects stay readable after the commit.

    ``management`` has the connections of requests that make no call; None: those of all others. With
    a ``watch``, a session raises OperationalError at once while the database is away.
    """
    made: SessionFactory = sessionmaker(
        engine,
        class_=DatabaseSession,
        management=management,
        watch=watch,
        expire_on_commit=False,
    )
    return made


def read_only(session: Session) -> Session:
    """Make the transactions of a session read-only; call it before any statement of the session."""
    session.bind = session.get_bind().execution_options(**{READ_ONLY: True})
    return session


def _leave_standby(context: ExceptionContext) -> OperationalError | None:
    """End the connections to a server that has become a standby: a new one may find the primary."""
    original = context.original_exception
    if getattr(original, "sqlstate", None) != READ_ONLY_STATE:
        return None
    context.is_disconnect = True
    return OperationalError(
        context.statement, None, original, hide_parameters=True, connection_invalidated=True
    )


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # Otherwise the driver begins transactions by itself, late, and not before DDL.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
