"""Databases for the tests: every test that takes ``database_url`` runs on SQLite and PostgreSQL.

A PostgreSQL is started once per run from the installed binaries, as an unprivileged user where the
tests run as root, and stopped by its pid. Missing binaries skip the test, and fail it under CI=true.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from control_world import MemoryJournal
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from processes import eventually, free_port
from sqlalchemy import Engine
from virtual_cluster import make_call
from webhook_world import Receiver, WebhookWorld

from fairserve.platform.apps.endpoints import router as apps
from fairserve.platform.audit.endpoints import router as audit
from fairserve.platform.auth import Authenticator
from fairserve.platform.cluster.fleet import merge
from fairserve.platform.cluster.fleet_endpoints import router as fleet
from fairserve.platform.completions.models import Models
from fairserve.platform.control.endpoints import router as live
from fairserve.platform.control.history import History
from fairserve.platform.control.live import LiveCall
from fairserve.platform.control.port import ClusterView, RunView, WorkerView
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.engine import SessionFactory, connect, session_factory
from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.db.keys import ensure_admin_key
from fairserve.platform.db.schema import upgrade
from fairserve.platform.errors import FairServeError
from fairserve.platform.exports.endpoints import router as exports
from fairserve.platform.interactions.admin_endpoints import router as all_interactions
from fairserve.platform.jobs.endpoints import router as jobs
from fairserve.platform.prices.endpoints import router as prices
from fairserve.platform.profiles.endpoints import router as profiles
from fairserve.platform.settings import Settings
from fairserve.platform.tenants.endpoints import router as tenants
from fairserve.platform.tenants.users import router as users
from fairserve.platform.throttling.endpoints import router as throttling
from fairserve.platform.throttling.preview import Previews
from fairserve.platform.usage.endpoints import router as usage
from fairserve.platform.webhooks.endpoints import router as webhooks
from fairserve.scheduling.registry import SYSTEMS

START_TIMEOUT_S = 60


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
    """The user that PostgreSQL runs as; None is ourselves. It refuses to run as root."""
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
    """URL of a running PostgreSQL, without the name of a database."""
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
            server.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
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
    """Name of a PostgreSQL database with an upgraded schema, to be copied."""
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


@pytest.fixture(scope="session")
def new_postgres_url(postgres_server, postgres_template) -> Callable[[], str]:
    """Makes PostgreSQL databases with the schema of this version; returns their URLs."""
    return lambda: _new_database(postgres_server, postgres_template)


@pytest.fixture
def postgres_url(postgres_server) -> str:
    """URL of a new PostgreSQL database without tables."""
    return _new_database(postgres_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path) -> str:
    """URL of a new database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request, tmp_path) -> Iterator[Engine]:
    """A new database with the schema of this version."""
    if request.param == "sqlite":
        engine = connect(f"sqlite:///{tmp_path / 'fairserve.sqlite3'}")
        upgrade(engine)
    else:
        server = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("postgres_template")
        engine = connect(_new_database(server, template))
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine) -> SessionFactory:
    """Sessions on ``engine``."""
    return session_factory(engine)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[int]:
    """Port of a running Redis that keeps nothing on disk."""
    binary = shutil.which("redis-server")
    if binary is None:
        _missing("redis-server is not installed")
    port = free_port()
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([binary, *flags], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        eventually(lambda: _answers(client), "Redis does not start", deadline_s=START_TIMEOUT_S)
        client.close()
        yield port
    finally:
        server.terminate()
        server.wait(START_TIMEOUT_S)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture
def redis_url(redis_server) -> str:
    """URL of an empty Redis database."""
    with redis.Redis(port=redis_server) as client:
        client.flushall()
    return f"redis://127.0.0.1:{redis_server}/0"


class RecordingControl:
    """Stands in for control: remembers what the management endpoints tell it."""

    def __init__(self) -> None:
        self.events: list = []
        self.reopened: list = []
        self.applied: list = []
        self.closed: list = []
        self.real = ControlService(SYSTEMS["fairserve"], MemoryJournal())
        """Without workers."""

    async def runs(self, tenant, app, limit, *, user=None):
        return []

    async def interaction(self, run_id):
        """Every run is live."""
        app = run_id.partition("/")[0]
        return RunView(run_id, "tn_1", app, "anna", "under_way", 1.0, 2.0, 3, 1, 30)

    async def close_interaction(self, run_id, *, cancel, failed=False):
        self.closed.append((run_id, cancel))

    async def clients(self, tenant, **page):
        return await self.real.clients(tenant, **page)

    async def client(self, tenant, app, user, *, within=None):
        """Every client has been refused something."""
        call = make_call("c", tenant=tenant, app=app, user=user)
        refused = LiveCall(call, "row", "", 0.0, 0.0, print, None)
        self.real.activity.refused(refused, "rpm_user_limit", time.monotonic())
        return await self.real.client(tenant, app, user, within=within)

    def post(self, event) -> None:
        self.events.append(event)

    def contract_changed(self, event, *, reopened) -> None:
        self.events.append(event)
        if reopened:
            self.reopened.append(event)

    def use_prices(self, prices) -> None:
        self.prices = prices

    def apply_throttling(self, system, parameters) -> None:
        self.applied.append((system, parameters))

    async def cluster(self) -> ClusterView:
        workers = (WorkerView("w0", False, 8000, 0, 0, 0, "m"),)
        return ClusterView("fairserve", False, False, 0, 8000, 0, 0, 0, workers)


class RecordingPrograms:
    """Stands in for the programs under way: remembers which are to end."""

    def __init__(self) -> None:
        self.cancelled: list = []

    def is_live(self, key) -> bool:
        return False

    def cancel_of(self, reason, *, app_id="", tenant_id="") -> None:
        self.cancelled.append((reason, app_id or tenant_id))


class RecordingJobs:
    """Stands in for who runs the background jobs: remembers which were asked for."""

    def __init__(self) -> None:
        self.asked: list = []

    def request(self, name) -> None:
        self.asked.append(name)


class RecordingFleet:
    """Stands in for the running fleet: takes up what is stored, and remembers what was dropped."""

    def __init__(self) -> None:
        self.parts: dict = {}
        self.drains: dict = {}
        self.dropped: list = []
        self.present: dict = {}

    @property
    def desired(self):
        return merge(self.parts, self.drains)

    def reload(self, load, drop="") -> None:
        stored = load()
        self.parts["api"], self.drains = stored.part, stored.drains
        self.dropped.append(drop)


class Management:
    """The management endpoints over one database, an admin, and every answer's body."""

    def __init__(self, engine: Engine, data_dir: Path) -> None:
        self.app = FastAPI()
        routers = (
            all_interactions,
            apps,
            audit,
            exports,
            fleet,
            jobs,
            live,
            prices,
            profiles,
            tenants,
            throttling,
            usage,
            users,
            webhooks,
        )
        for router in routers:
            self.app.include_router(router)
        self.app.add_exception_handler(FairServeError, self._answer)
        self.state = self.app.state
        self.state.settings = Settings(data_dir=data_dir)
        self.state.session_factory = session_factory(engine)
        self.hasher = key_hasher(self.state.settings)
        self.state.authenticator = Authenticator(self.state.session_factory, self.hasher)
        self.state.control = self.control = RecordingControl()
        self.state.history = History(self.control.real, lambda: ())
        self.state.ledger = None
        self.state.programs = self.programs = RecordingPrograms()
        self.state.fleet = self.fleet = RecordingFleet()
        self.state.previews = Previews()
        self.state.pool = self.pool = {}
        self.state.jobs = self.jobs = RecordingJobs()
        self.state.models = Models(lambda worker_id: True)
        self.client = TestClient(self.app)
        self.bodies: list[str] = []
        self.admin = ensure_admin_key(self.state.session_factory, self.hasher)

    @staticmethod
    async def _answer(request: Request, error: FairServeError) -> JSONResponse:
        return JSONResponse(error.body(), error.status, error.headers)

    def call(self, key, method, path, body=None, *, status=200, **query):
        """Send a request; returns the JSON, after checking the status."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = self.client.request(method, path, json=body, params=query, headers=headers)
        assert answer.status_code == status, (answer.status_code, answer.text)
        self.bodies.append(answer.text)
        return answer.json() if answer.content else None

    def tenant(self, name: str) -> dict:
        """A new tenant, with its ``api_key``."""
        return self.call(self.admin, "POST", "/admin/tenants", {"name": name}, status=201)

    def new_app(self, tenant: dict, name: str = "chat", **more) -> dict:
        """A new app of the tenant, with its ``api_key``."""
        body = {"name": name, "profile": {"stages": [{"input_tokens": 9, "output_tokens": 3}]}}
        return self.call(tenant["api_key"], "POST", "/v1/apps", body | more, status=201)


@pytest.fixture
def management(engine, tmp_path) -> Iterator[Management]:
    """The management endpoints on both databases."""
    management = Management(engine, tmp_path / "data")
    with management.client:
        yield management


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An HTTP server on the loopback that webhooks are sent to."""
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def webhooks_world(management, engine, receiver) -> WebhookWorld:
    """Two tenants, and a ledger that tells of their calls, on both databases."""
    return WebhookWorld(management, engine, receiver)
