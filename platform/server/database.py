"""Prepares the database before the server serves: schema, lease, secret key, first admin key."""

from __future__ import annotations

from sqlalchemy import Engine

from fairserve.platform.control.lease import Lease
from fairserve.platform.db import schema
from fairserve.platform.db.engine import session_factory
from fairserve.platform.db.keys import ensure_admin_key
from fairserve.platform.db.secret_key import check_secret_key
from fairserve.platform.db.settings import DbSettings


def prepare_database(
    settings: DbSettings, engine: Engine, lease: Lease | None = None
) -> str | None:
    """Create the embedded schema, check any schema; returns a new admin key, to be shown once.

    Acquires the lease before it writes to a database that another server may use. Raises SchemaError and
    SecretKeyError, which name the command that helps, LeaseTakenError, and ValueError for an unusable
    secret key.
    """
    schema.prepare(
        engine,
        create_if_empty=settings.embedded_database,
        accept_newer=settings.accept_newer_schema,
    )
    if lease is not None:
        lease.acquire()
    sessions = session_factory(engine)
    hasher = check_secret_key(sessions, settings)
    configured = settings.admin_key.get_secret_value() if settings.admin_key else None
    return ensure_admin_key(sessions, hasher, configured)
