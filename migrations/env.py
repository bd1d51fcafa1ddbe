"""Alembic's environment: runs migrations on the connection for which the caller holds the lock.

It is called through :mod:`fairserve.platform.db.schema` only; there is no alembic.ini and no other
way to name a database. SQLite alters tables by copying them (batch mode).
"""

from __future__ import annotations

from alembic import context

from fairserve.platform.db.models import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through `fairserve db upgrade`")

context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
