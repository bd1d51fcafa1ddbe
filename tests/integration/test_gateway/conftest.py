"""Real server processes for the tests of the gateway, before real workers and scripted ones."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import httpx
import openai
import pytest
from processes import eventually, free_port
from scripted_worker import ScriptedWorker

ADMIN_KEY = "sk-test-admin-" + "0" * 40
DEADLINE_S = 90
MODEL = "fairserve-tiny-random"


class Server:
    """``fairserve serve`` as a child process, with one tenant and one app."""

    def __init__(self, data_dir, *flags):
        self.data_dir = data_dir
        self.flags = flags
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = data_dir.with_suffix(".log")
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S)
        self.app_key = None
        self.clients = []
        self.start()

    def command(self, *flags):
        base = [sys.executable, "-W", "error::ResourceWarning", "-m", "fairserve.platform.cli"]
        return [*base, "serve", "--data-dir", str(self.data_dir), *flags]

    def environment(self):
        return {**os.environ, "FAIRSERVE_ADMIN_KEY": ADMIN_KEY, "HF_HUB_OFFLINE": "1"}

    def start(self):
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command("--port", str(self.port), *self.flags),
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        eventually(self._ready, f"the server is not ready, see {self.log_path}")
        if self.app_key is None:
            self._register()

    def _ready(self):
        assert self.process.poll() is None, self.log_path.read_text()
        try:
            return self.http.get("/health/readiness").status_code == 200
        except httpx.TransportError:
            return False

    def admin(self, method, path, **body):
        return self.request(method, path, ADMIN_KEY, **body)

    def request(self, method, path, key, **more):
        headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **more)

    def _register(self):
        tenant = self.admin("POST", "/admin/tenants", json={"name": "tenant"})
        assert tenant.status_code == 201, tenant.text
        self.tenant_key = tenant.json()["api_key"]
        self.app_key = self.new_app("app")

    def new_app(self, name, **limits):
        profile = {
            "stages": [{"input_tokens": 30, "system_tokens": 0, "output_tokens": 20}],
            "calls_per_interaction": 3,
        }
        body = {"name": name, "profile": profile, "limits": limits}
        answer = self.request("POST", "/v1/apps", self.tenant_key, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["api_key"]

    def openai(self, key=None, **more):
        options = {"max_retries": 0, "timeout": DEADLINE_S, **more}
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key or self.app_key, **options)
        self.clients.append(client)
        return client

    def post(self, path, body, key=None, **more):
        return self.request("POST", path, key or self.app_key, json=body, **more)

    def rows(self, **where):
        """Ledger rows as dictionaries."""
        database = self.data_dir / "fairserve.sqlite3"
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            condition = " AND ".join(f"{name} = ?" for name in where) or "1"
            query = f"SELECT * FROM ledger_calls WHERE {condition}"
            return [dict(row) for row in connection.execute(query, tuple(where.values()))]

    def row(self, **where):
        """The one row that fits, once it is there."""
        (row,) = eventually(lambda: self.rows(**where), f"no row with {where}")
        return row

    def cluster(self):
        return self.admin("GET", "/admin/cluster").json()

    def worker_pids(self):
        return {p["worker_id"]: p["pid"] for p in self.cluster()["processes"]}

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Ctrl-C; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def close(self):
        for client in self.clients:
            client.close()
        self.http.close()
        if self.process.poll() is None:
            self.kill()


@contextmanager
def servers(tmp_path_factory):
    """What starts servers; they are closed with it."""
    started = []

    def start(*flags):
        server = Server(tmp_path_factory.mktemp("server") / "data", *flags)
        started.append(server)
        return server

    try:
        yield start
    finally:
        for server in started:
            server.close()


@pytest.fixture(scope="module")
def start_server(tmp_path_factory):
    """Servers that go with the module: idle ones take memory and time from all that follow."""
    with servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="package")
def start_shared(tmp_path_factory):
    """Servers that several modules use."""
    with servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="package")
def server(start_shared):
    """A server with two real workers."""
    return start_shared("--workers", "2")


@pytest.fixture(scope="package")
def scripted():
    workers = [ScriptedWorker(), ScriptedWorker()]
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture(scope="package")
def gateway(start_shared, scripted):
    """A server in front of two scripted workers, impatient in everything."""
    return start_shared(
        "--worker-urls",
        ",".join(worker.url for worker in scripted),
        "--keepalive-s",
        "0.2",
        "--max-queue-wait-s",
        "1.5",
    )
