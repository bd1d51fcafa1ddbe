"""The upgrade that normalises stored user ids keeps each block on the same user."""

from datetime import UTC, datetime

import databases
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from fairserve.platform.db import engine as engines
from fairserve.platform.db import schema

NAME = "new_users_of_an_app"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NFC, NFD = "zo\u00e9", "zoe\u0301"
USERS = [
    ("mallory", False),
    ("mallory ", True),
    (" mallory", False),
    ("ann\u00a0", True),
    (NFD, True),
    (NFC, False),
    ("bob", True),
    ("  ", True),
    ("zero\u200bwidth ", True),
]


@pytest.fixture
def empty(database_url):
    engine = engines.connect(database_url)
    yield engine
    engine.dispose()


def revisions():
    """Return the revision before the upgrade, and that of the upgrade."""
    scripts = ScriptDirectory.from_config(schema.alembic_config())
    (found,) = [each for each in scripts.walk_revisions() if NAME in each.path]
    return found.down_revision, found.revision


@databases.ON_BOTH
def test_stored_ids_are_normalised(empty):
    before, after = revisions()
    schema.upgrade(empty, before)
    with empty.begin() as connection:
        for tenant in ("tn_1", "tn_2"):
            connection.execute(
                text("INSERT INTO tenants (id, name, created_at) VALUES (:id, :id, :now)"),
                {"id": tenant, "now": NOW},
            )
        for user, blocked in USERS:
            connection.execute(
                text(
                    "INSERT INTO end_users (tenant_id, external_id, weight, blocked, updated_at)"
                    " VALUES ('tn_1', :user, 1, :blocked, :now)"
                ),
                {"user": user, "blocked": blocked, "now": NOW},
            )
        for tenant, scope, user, limit in (
            ("tn_1", "user", "mallory", 1),
            ("tn_1", "user", "mallory ", 2),
            ("tn_1", "user", "ann ", 3),
            ("tn_2", "user", " ann", 4),
            ("tn_1", "tenant", "", 5),
        ):
            connection.execute(
                text(
                    "INSERT INTO contracts (tenant_id, scope, app_id, user_id, rpm_limit, soft_end,"
                    " updated_at) VALUES (:tenant, :scope, '', :user, :limit, 'warn', :now)"
                ),
                {"tenant": tenant, "scope": scope, "user": user, "limit": limit, "now": NOW},
            )
    schema.upgrade(empty, after)
    with empty.connect() as connection:
        users = connection.execute(text("SELECT external_id, blocked FROM end_users")).all()
        contracts = connection.execute(
            text("SELECT tenant_id, scope, user_id, rpm_limit FROM contracts")
        ).all()
    assert {user: bool(blocked) for user, blocked in users} == {
        "mallory": True,
        "ann": True,
        NFC: True,
        "bob": True,
        "  ": True,
        "zero\u200bwidth": True,
    }
    assert {tuple(row) for row in contracts} == {
        ("tn_1", "user", "mallory", 1),
        ("tn_1", "user", "ann", 3),
        ("tn_2", "user", "ann", 4),
        ("tn_1", "tenant", "", 5),
    }
