"""A failed start prints one line on stderr with cause and next step, and leaves nothing behind."""

import os
import subprocess
import sys

import databases
import pytest
from sqlalchemy import event, text

from fairserve.platform.db import engine as engines
from fairserve.platform.db import schema
from fairserve.platform.db.engine import session_factory
from fairserve.platform.db.key_hash import KEY_FILE, key_hasher
from fairserve.platform.db.keys import ensure_admin_key, find
from fairserve.platform.db.secret_key import SecretKeyError, check_secret_key
from fairserve.platform.server import cli
from fairserve.platform.server.database import prepare_database
from fairserve.platform.server.settings import Settings

HEAD = schema.required_revision()


@pytest.fixture
def start_error(capfd):
    """Return a function that runs a failing command and returns its one line of output."""
    interval_s = sys.getswitchinterval()

    def run(*arguments):
        try:
            code = cli.main(list(arguments))
        except SystemExit as ended:
            code = ended.code
        out, error = capfd.readouterr()
        assert code not in (0, None), out
        assert error.count("\n") == 1, error
        assert error.startswith("fairserve")
        return error

    yield run
    sys.setswitchinterval(interval_s)  # a server changes it


@pytest.fixture
def settings(tmp_path):
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
def made(settings):
    """Return the data folder of a server that ran with these settings."""
    engine = engines.connect(settings.db.effective_database_url)
    prepare_database(settings.db, engine)
    yield engine
    engine.dispose()


def serve(settings, *more):
    return ("serve", "--data-dir", str(settings.db.data_dir), "--port", "0", *more)


def test_a_missing_model_ends_the_server_with_the_cause(tmp_path):
    where = ["--data-dir", str(tmp_path / "data"), "--port", "0", "--workers", "1"]
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "fairserve.platform.server.cli",
            "serve",
            *where,
            "--model",
            "nosuch/model",
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    (cause,) = (line for line in ended.stderr.splitlines() if line.startswith("fairserve: "))
    assert "cannot start: model 'nosuch/model' cannot be loaded" in cause
    assert "Traceback" not in ended.stderr


# --- the data folder and the database -----------------------------------------------------------------


def test_a_data_folder_that_cannot_be_created(start_error, tmp_path):
    (tmp_path / "file").write_text("x")
    error = start_error("serve", "--data-dir", str(tmp_path / "file" / "data"))
    assert "the data folder" in error
    assert "--data-dir" in error


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://localhost/x", "mysql databases are not supported"),
        ("no url", "cannot be read"),
        ("sqlite://", "in-memory"),
        ("sqlite:////proc/nowhere/x.sqlite3", "/proc/nowhere"),
        ("postgresql://nobody:secret-word@127.0.0.1:1/x", "refused"),
    ],
)
def test_an_unreachable_database(start_error, settings, monkeypatch, url, reason):
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "x" * 40)
    for command in (serve(settings), ("usage", "rollup"), ("db", "current")):
        error = start_error(*command, "--database-url", url)
        assert reason in error
        assert "secret-word" not in error


def test_a_file_that_is_not_a_database(start_error, settings):
    settings.db.data_dir.mkdir()
    (settings.db.data_dir / "fairserve.sqlite3").write_text("no database " * 100)
    assert "file is not a database" in start_error(*serve(settings))


def test_reading_commands_create_no_database(start_error, settings):
    where = ["--data-dir", str(settings.db.data_dir)]
    for command in (
        ("usage", "report"),
        ("usage", "reconcile"),
        ("jobs", "list"),
        ("db", "current"),
        ("db", "downgrade", "base"),
        ("db", "replace-secret-key"),
    ):
        assert "there is no database at" in start_error(*command, *where), command
    assert not settings.db.data_dir.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("alembic_version SET version_num = '0027'", "start with a new data folder or database"),
        ("schema_info SET min_reader = 9999", "install the newer version"),
        (f"alembic_version SET version_num = '{HEAD + 1:04}'", "`fairserve db downgrade`"),
        ("alembic_version SET version_num = 'ae1027a6acf'", "which is not FairServe's"),
    ],
)
def test_an_unsuitable_schema(start_error, settings, made, change, reason):
    with made.begin() as connection:
        connection.execute(text(f"UPDATE {change}"))
    assert reason in start_error(*serve(settings))


def test_a_newer_schema_is_accepted_if_the_operator_allows_it(settings, made):
    with made.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{HEAD + 1:04}'"))
    prepare_database(settings.changed(accept_newer_schema=True).db, made)


# --- the secret key -----------------------------------------------------------------------------------


@pytest.fixture
def lost(settings, made):
    """Return the file of a lost secret key."""
    path = settings.db.data_dir / KEY_FILE
    path.unlink()
    return path


def test_a_lost_secret_key_is_not_replaced(start_error, settings, lost):
    error = start_error(*serve(settings))
    assert f"the secret key {lost} is missing" in error
    assert "`fairserve db replace-secret-key`" in error
    assert not lost.exists()
    lost.write_text("another one, of sufficient length, from elsewhere\n")
    assert f"the secret key {lost} is not the key" in start_error(*serve(settings))


def test_a_lost_secret_key_can_be_replaced(start_error, settings, made, lost, capfd):
    where = ("--data-dir", str(settings.db.data_dir))
    assert cli.main(["db", "replace-secret-key", *where]) == 0
    out = capfd.readouterr().out
    assert out.startswith("1 API keys are revoked\n")
    admin_key = out.split()[-1]
    assert prepare_database(settings.db, made) is None
    with session_factory(made)() as session:
        row = find(session, key_hasher(settings.db), admin_key)
        assert (row.scope, row.revoked_at) == ("admin", None)
        left = "SELECT count(*) FROM api_keys WHERE revoked_at IS NULL"
        assert session.scalar(text(left)) == 1
    assert "nothing is lost" in start_error("db", "replace-secret-key", *where)


@databases.ON_POSTGRESQL
def test_servers_that_start_at_once_record_one_secret_key(engine, tmp_path):
    ours, others = (
        Settings(data_dir=tmp_path, database_url=engine.url.render_as_string(), secret_key=key * 40)
        for key in "no"
    )

    def start(settings, *, while_another_starts):
        sessions = session_factory(engine)

        def record(*_):
            check_secret_key(session_factory(engine), while_another_starts.db)

        event.listen(sessions, "before_flush", record, once=True)
        return check_secret_key(sessions, settings.db)

    assert start(ours, while_another_starts=ours).secret_id == key_hasher(ours.db).secret_id
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM installation_facts"))
    with pytest.raises(SecretKeyError):
        start(ours, while_another_starts=others)


def test_a_server_starts_after_a_key_rotation(settings, made):
    former = (settings.db.data_dir / KEY_FILE).read_text().strip()
    rotating = Settings(
        data_dir=settings.db.data_dir, secret_key="n" * 40, secret_key_previous=former
    )
    prepare_database(rotating.db, made)
    after = Settings(data_dir=settings.db.data_dir, secret_key="n" * 40)
    prepare_database(after.db, made)
    assert ensure_admin_key(session_factory(made), key_hasher(after.db)) is None
