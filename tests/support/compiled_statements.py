"""One cache of compiled statements for all SQLite engines of a test process.

Every test has a database and engines of its own, each of which would compile the same statements again:
a quarter of the CPU of a test of the management API. The keys of SQLAlchemy's cache contain the dialect,
so the engines share that as well. Those of PostgreSQL, which dialects ask for its version, do not.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

from sqlalchemy import create_engine

from fairserve.platform.db import engine as product


@contextmanager
def shared_by_engines():
    """Make engines that share their dialect and what is compiled for it."""
    dialects, compiled = {}, {}

    def sharing_engine(url, **options):
        engine = create_engine(url, **options)
        if engine.name == "sqlite":
            engine.dialect = dialects.setdefault(url.drivername, engine.dialect)
            engine.update_execution_options(compiled_cache=compiled)
        return engine

    with mock.patch.object(product, "create_engine", sharing_engine):
        yield
