"""Migrations run up and down without drift from the models; a server accepts only suitable schemas."""

import hashlib
import runpy
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import databases
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, String, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError, OperationalError, StatementError
from sqlalchemy.schema import CreateIndex, CreateTable

from fairserve.platform.db import engine as engines
from fairserve.platform.db import schema
from fairserve.platform.db.identity import App, EndUser, Tenant
from fairserve.platform.db.models import metadata


@pytest.fixture
def empty(database_url):
    engine = engines.connect(database_url)
    yield engine
    engine.dispose()


HEAD = schema.required_revision()
MIGRATION = Path(__file__).parents[2] / "migrations" / "versions" / "0106_tables.py"


def statements():
    """Yield the statements that create the tables of the models on both databases, by name."""
    for dialect in (sqlite.dialect(), postgresql.dialect()):
        for table in sorted(metadata.tables.values(), key=lambda each: each.name):
            yield str(CreateTable(table).compile(dialect=dialect))
            for index in sorted(table.indexes, key=lambda each: each.name):
                yield str(CreateIndex(index).compile(dialect=dialect))


def test_a_changed_model_needs_a_higher_number_of_the_first_migration():
    migration = runpy.run_path(str(MIGRATION))
    found = hashlib.sha256("\n".join(statements()).encode()).hexdigest()
    assert found == migration["STATEMENTS_SHA256"], (
        f"the tables are not those of revision {migration['revision']}: raise the number in the name"
        " and in `revision` of the migration, and set its STATEMENTS_SHA256 to the found hash"
    )


@databases.ON_BOTH
def test_upgrade_creates_the_tables_of_the_models(empty):
    schema.upgrade(empty)
    with empty.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        found = inspect(connection)
        checks = {(t, c["name"]) for t in metadata.tables for c in found.get_check_constraints(t)}
    assert checks == {
        (table.name, constraint.name)
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    assert schema.current_revision(empty) == HEAD
    schema.check(empty, accept_newer=False)


@databases.ON_BOTH
def test_a_downgrade_to_base_leaves_no_table(empty):
    schema.upgrade(empty)
    schema.downgrade(empty, "base")
    assert set(inspect(empty).get_table_names()) <= {"alembic_version"}
    assert schema.current_revision(empty) == 0
    schema.upgrade(empty)
    schema.check(empty, accept_newer=False)


@pytest.mark.parametrize("revision", ["0001", "0027", f"{schema.revisions()[0] - 1:04}"])
def test_a_database_of_a_version_before_the_first_release_is_rejected(empty, revision):
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text(f"INSERT INTO alembic_version VALUES ('{revision}')"))
        connection.execute(text("CREATE TABLE tenants (id VARCHAR(64))"))
    reason = f"schema revision {int(revision)}, .*start with a new"
    for use in (
        schema.upgrade,
        lambda engine: schema.downgrade(engine, "base"),
        lambda engine: schema.prepare(engine, create_if_empty=True, accept_newer=True),
        schema.current_revision,
    ):
        with pytest.raises(schema.SchemaError, match=reason):
            use(empty)
    assert inspect(empty).get_table_names() == ["alembic_version", "tenants"]


@pytest.mark.parametrize("revision", [str(HEAD), str(HEAD + 5), "-1", "27", "head"])
def test_downgrade_rejects_a_revision_that_is_not_below(engine, revision):
    with pytest.raises(schema.SchemaError, match=f"allowed: base, or a revision below {HEAD}"):
        schema.downgrade(engine, revision)
    schema.check(engine, accept_newer=False)


def test_an_old_schema_is_rejected_with_the_upgrade_command(empty, monkeypatch):
    with pytest.raises(schema.SchemaError, match=r"no schema.*`fairserve db upgrade`"):
        schema.check(empty, accept_newer=False)
    with pytest.raises(schema.SchemaError, match="fairserve db upgrade"):
        schema.prepare(empty, create_if_empty=False)
    schema.prepare(empty, create_if_empty=True)
    monkeypatch.setattr(schema, "revisions", lambda: [HEAD, HEAD + 1])
    with pytest.raises(schema.SchemaError, match=rf"revision {HEAD}, .*`fairserve db upgrade`"):
        schema.prepare(empty, create_if_empty=True)


def test_prepare_never_creates_a_schema_beside_other_tables(empty):
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE something_else (id INTEGER)"))
    with pytest.raises(schema.SchemaError):
        schema.prepare(empty, create_if_empty=True)


def test_an_incompatible_schema_is_rejected(engine):
    with engine.begin() as connection:
        connection.execute(text("UPDATE schema_info SET compatible = :no"), {"no": False})
    with pytest.raises(schema.SchemaError, match=r"incompatible.*fairserve db upgrade"):
        schema.check(engine, accept_newer=False)


def test_a_schema_that_needs_a_newer_server_is_rejected(engine):
    with engine.begin() as connection:
        connection.execute(text("UPDATE schema_info SET min_reader = :next"), {"next": HEAD + 1})
    with pytest.raises(schema.SchemaError, match=f"revision {HEAD + 1} or later"):
        schema.check(engine, accept_newer=False)


def test_a_newer_expanded_schema_is_accepted_if_allowed(engine):
    with engine.begin() as connection:
        newer = {"newer": f"{HEAD + 1:04}"}
        connection.execute(text("UPDATE alembic_version SET version_num = :newer"), newer)
    with pytest.raises(schema.SchemaError, match="--accept-newer-schema"):
        schema.check(engine, accept_newer=False)
    schema.check(engine, accept_newer=True)
    with pytest.raises(schema.SchemaError, match="install the newer version"):
        schema.upgrade(engine)


@databases.ON_BOTH
def test_two_processes_upgrade_concurrently(database_url, empty):
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "fairserve.platform.server.cli",
        "db",
        "upgrade",
    ]
    processes = [
        subprocess.Popen(
            [*command, "--database-url", database_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        assert out == f"schema revision {HEAD}\n"
    schema.check(empty, accept_newer=False)


def test_foreign_keys_are_enforced(engine):
    app = App(
        id="app_1",
        tenant_id="tn_none",
        name="a",
        calls_per_interaction=1,
        idle_timeout_s=1,
        created_at=datetime.now(UTC),
    )
    with engines.session_factory(engine)() as session:
        session.add(app)
        with pytest.raises(IntegrityError):
            session.commit()


def test_copying_a_table_keeps_the_rows_that_reference_it(engine, sessions, monkeypatch):
    with sessions.begin() as session:
        session.add(Tenant(id="tn_1", name="a", created_at=datetime.now(UTC)))
        session.flush()
        session.add(
            EndUser(
                tenant_id="tn_1",
                external_id="u",
                weight=1,
                blocked=False,
                updated_at=datetime.now(UTC),
            )
        )

    def copy_tenants(config, revision):
        context = MigrationContext.configure(config.attributes["connection"])
        with Operations(context).batch_alter_table("tenants", recreate="auto") as batch:
            batch.alter_column("name", type_=String(300))

    monkeypatch.setattr(command, "upgrade", copy_tenants)
    schema.upgrade(engine)
    with sessions() as session:
        assert session.scalars(select(EndUser.external_id)).all() == ["u"]
        assert session.get(Tenant, "tn_1").name == "a"


def test_connections_to_a_server_that_became_a_standby_are_replaced(postgres_url):
    engine = engines.connect(postgres_url, pool_size=2)
    with engine.begin() as connection, engine.begin() as idle:
        connection.execute(text("CREATE TABLE written (value INTEGER)"))
        for each in (connection, idle):
            each.execute(text("SET default_transaction_read_only = on"))
    with pytest.raises(OperationalError), engine.begin() as connection:
        connection.execute(text("INSERT INTO written VALUES (1)"))
    for _ in range(2):
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO written VALUES (1)"))
    engine.dispose()


@databases.ON_BOTH
def test_times_are_utc_and_aware(sessions):
    there = timezone(timedelta(hours=5))
    at = datetime(2026, 3, 1, 2, 30, tzinfo=there)
    with sessions.begin() as session:
        session.add(Tenant(id="tn_1", name="a", created_at=at))
    with sessions() as session:
        read = session.get(Tenant, "tn_1").created_at
    assert read == at
    assert read.utcoffset() == timedelta(0)
    with sessions() as session:
        session.add(Tenant(id="tn_2", name="b", created_at=datetime(2026, 3, 1)))
        with pytest.raises(StatementError, match="has no time zone"):
            session.flush()


def test_a_reader_does_not_wait_for_writers(sessions):
    with sessions.begin() as writer, sessions() as reader:
        writer.add(Tenant(id="tn_1", name="a", created_at=datetime.now(UTC)))
        writer.flush()
        assert engines.read_only(reader).get(Tenant, "tn_1") is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nonsense", "cannot be read"),
        ("mysql://u:hunter2@h/d", "mysql databases are not supported"),
        ("sqlite://", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
    ],
)
def test_an_invalid_url_is_rejected_without_revealing_its_password(url, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        engines.connect(url)
    assert "hunter2" not in str(caught.value)


def test_postgresql_urls_are_completed_with_the_driver():
    assert engines.normalise_url("postgresql://h/d").drivername == "postgresql+psycopg"
    assert engines.normalise_url("postgres://h/d").drivername == "postgresql+psycopg"
