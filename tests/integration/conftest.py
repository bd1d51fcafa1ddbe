"""A scripted worker, and databases: SQLite, or those that a mark of :mod:`databases` names.

SQLite databases are copies of one migrated file, PostgreSQL's of one migrated template. A PostgreSQL
is started once per process from the installed binaries, as an unprivileged user where the tests run as
root, and stopped by its pid. Missing binaries skip the test, and fail it under CI=true.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from management_world import Management
from processes import eventually, free_port
from scripted_worker import ScriptedWorker
from sqlalchemy import Engine
from webhook_world import Receiver, WebhookWorld

from fairserve.platform.db.engine import SessionFactory, connect, session_factory
from fairserve.platform.db.schema import upgrade

START_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def worker():
    """Return a worker that answers as a test says."""
    worker = ScriptedWorker()
    yield worker
    worker.close()


def _missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    paths = ([Path(found).resolve()] if found else []) + candidates
    for path in paths:
        if (path.parent / "postgres").exists():
            return path.parent
    return None


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user that PostgreSQL runs as, because it rejects root. None: the present user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    _missing("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
    return None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Yield the URL of a running PostgreSQL, without a database name."""
    binaries = _binaries()
    if binaries is None:
        _missing("PostgreSQL's binaries (initdb, postgres) are not installed")
    user = _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="fairserve-postgres-"))
    as_user = {}
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data, log_path = folder / "data", folder / "log"
    server = None
    try:
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-N", "-E", "UTF8"],
            cwd=folder,
            check=True,
            capture_output=True,
            **as_user,
        )
        port = free_port()
        options = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with log_path.open("wb") as log:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", data, *flags],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user,
            )
        url = f"postgresql://tests@127.0.0.1:{port}"
        _wait_until_ready(url, server, log_path)
        yield url
    finally:
        if server is not None:
            server.send_signal(signal.SIGQUIT)  # at once: its data is no longer needed
            try:
                server.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(url: str, server: subprocess.Popen, log: Path) -> None:
    def answers() -> bool:
        try:
            psycopg.connect(f"{url}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if server.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from error
            return False
        return True

    eventually(
        answers, lambda: f"PostgreSQL did not start: {log.read_text()}", deadline_s=START_TIMEOUT_S
    )


@pytest.fixture(scope="session")
def postgres_template(postgres_server) -> str:
    """Return the name of a PostgreSQL database with the present schema, to be copied."""
    name = "template_of_tests"
    _execute(postgres_server, f"CREATE DATABASE {name}")
    engine = connect(f"{postgres_server}/{name}")
    upgrade(engine)
    engine.dispose()
    return name


def _execute(server: str, statement: str) -> None:
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(statement)


def _new_database(server: str, template: str = "template0") -> str:
    name = f"t_{uuid.uuid4().hex}"
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"{server}/{name}"


@contextmanager
def _database(server: str, template: str = "template0") -> Iterator[str]:
    """Yield the URL of a new database; drop it at the end, as hundreds slow each other down."""
    url = _new_database(server, template)
    try:
        yield url
    finally:
        _execute(server, f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


@pytest.fixture(scope="session")
def new_postgres_url(postgres_server, postgres_template) -> Callable[[], str]:
    """Return a function that creates PostgreSQL databases with the schema, and returns their URLs."""
    return lambda: _new_database(postgres_server, postgres_template)


@pytest.fixture
def postgres_url(postgres_server) -> Iterator[str]:
    """Yield the URL of a new PostgreSQL database without tables."""
    with _database(postgres_server) as url:
        yield url


def pytest_generate_tests(metafunc) -> None:
    """Run a test that takes a database once for each database that its mark names."""
    mark = metafunc.definition.get_closest_marker("databases")
    if "database" in metafunc.fixturenames:
        metafunc.parametrize("database", mark.args if mark else ("sqlite",), scope="session")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory) -> Path:
    """Return a SQLite file with the present schema, to be copied."""
    path: Path = tmp_path_factory.mktemp("template") / "fairserve.sqlite3"
    engine = connect(f"sqlite:///{path}")
    upgrade(engine)
    engine.dispose()  # the last connection moves the write-ahead log into the file
    return path


@pytest.fixture
def database_url(request, database, tmp_path) -> str:
    """Return the URL of a new database without tables."""
    if database == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def engine(request, database, tmp_path) -> Iterator[Engine]:
    """Yield an engine of a new database with the schema of this version."""
    with ExitStack() as stack:
        if database == "sqlite":
            path = tmp_path / "fairserve.sqlite3"
            shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
            engine = connect(f"sqlite:///{path}")
        else:
            server = request.getfixturevalue("postgres_server")
            template = request.getfixturevalue("postgres_template")
            engine = connect(stack.enter_context(_database(server, template)))
        stack.callback(engine.dispose)
        yield engine


@pytest.fixture
def sessions(engine) -> SessionFactory:
    """Return a session factory of ``engine``."""
    return session_factory(engine)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[int]:
    """Yield the port of a running Redis that persists nothing."""
    binary = shutil.which("redis-server")
    if binary is None:
        _missing("redis-server is not installed")
    port = free_port()
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([binary, *flags], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        eventually(lambda: _responds(client), "Redis does not start", deadline_s=START_TIMEOUT_S)
        client.close()
        yield port
    finally:
        server.terminate()
        server.wait(START_TIMEOUT_S)


def _responds(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture
def redis_url(redis_server) -> str:
    """Return the URL of an empty Redis database."""
    with redis.Redis(port=redis_server) as client:
        client.flushall()
    return f"redis://127.0.0.1:{redis_server}/0"


@pytest.fixture
def management(engine, tmp_path) -> Iterator[Management]:
    """Yield the management endpoints of the shipped app."""
    management = Management(engine, tmp_path / "data")
    with management.client:
        yield management


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield an HTTP server on the loopback that receives webhooks."""
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def webhooks_world(management, receiver) -> WebhookWorld:
    """Return two tenants, and a ledger that publishes events of their calls."""
    return WebhookWorld(management, receiver)
