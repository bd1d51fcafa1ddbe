"""A scripted worker, and databases: SQLite, or those that a mark of :mod:`databases` names.

SQLite databases are copies of one migrated file, PostgreSQL's of one migrated template. A PostgreSQL
is started once per process (:mod:`postgres_process`). Missing binaries skip the test, and fail it under
CI=true.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import log_members
import pytest
import redis
from compiled_statements import shared_by_engines
from management_world import Management
from postgres_process import (
    execute,
    missing,
    new_database,
    new_template,
    running_postgres,
)
from redis_process import RedisProcess
from scripted_worker import ScriptedWorker
from sqlalchemy import Engine
from webhook_world import Receiver, WebhookWorld

from fairserve.platform.db.engine import SessionFactory, connect, session_factory
from fairserve.platform.db.schema import upgrade


@pytest.fixture(autouse=True, scope="session")
def _compiled_statements() -> Iterator[None]:
    """Compile each statement once, and not for each test."""
    with shared_by_engines():
        yield


@pytest.fixture(scope="module")
def worker():
    """Return a worker that answers as a test says."""
    worker = ScriptedWorker()
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Yield the URL of a running PostgreSQL, without a database name."""
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server) -> str:
    """Return the name of a PostgreSQL database with the present schema, to be copied."""
    return new_template(postgres_server)


@contextmanager
def _database(server: str, template: str = "template0") -> Iterator[str]:
    """Yield the URL of a new database; drop it at the end, as hundreds slow each other down."""
    url = new_database(server, template)
    try:
        yield url
    finally:
        execute(server, f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


@pytest.fixture(scope="session")
def new_postgres_url(postgres_server, postgres_template) -> Callable[[], str]:
    """Return a function that creates PostgreSQL databases with the schema, and returns their URLs."""
    return lambda: new_database(postgres_server, postgres_template)


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
def redis_server(tmp_path_factory) -> Iterator[int]:
    """Yield the port of a running Redis that persists nothing."""
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    server = RedisProcess(tmp_path_factory.mktemp("redis") / "data")
    yield server.port
    server.close()


@pytest.fixture
def redis_url(redis_server) -> str:
    """Return the URL of an empty Redis database."""
    with redis.Redis(port=redis_server) as client:
        client.flushall()
    return f"redis://127.0.0.1:{redis_server}/0"


@pytest.fixture
def short_times(monkeypatch):
    """Let processes that share an order notice faults soon."""
    log_members.short_times(monkeypatch)


@pytest.fixture
async def members(redis_url, short_times) -> AsyncIterator[log_members.Members]:
    """Yield processes that share the order of a cell."""
    members = log_members.Members(redis_url)
    yield members
    await members.close()


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
