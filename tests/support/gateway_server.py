"""``fairserve serve`` with one tenant and one app, as a child process or in a thread of the test.

Both run the whole command: flags, locks, socket, database, control and drain. A thread starts ten
times as fast, because everything is imported already; it handles no signals, has no embedded
workers, and checks its fleet more often. Tests of the process itself need :class:`ChildServer`.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from unittest import mock

import httpx
from data_folders import new_data_dir
from huggingface_hub import constants
from processes import eventually, free_port
from server_client import DEADLINE_S, NO_TLS, ServerClient
from typer.main import get_command

from fairserve.platform.fleet import watch
from fairserve.platform.fleet.fleet_file import FleetFileWatch
from fairserve.platform.fleet.running_fleet import RunningFleet
from fairserve.platform.reporting.traffic import recorder
from fairserve.platform.server import process, wiring
from fairserve.platform.server.commands import serve
from fairserve.platform.server.configuration.sources import settings_from
from fairserve.platform.tenancy.profiles import changes

ADMIN_KEY = "sk-test-admin-" + "0" * 40
LOOK_S = 0.05
"""Seconds between checks of the fleet and of the fleet file, for a server in a thread."""
REPORT_S = 0.2
"""Seconds between health checks of its workers."""


class GatewayServer(ServerClient):
    """A server on ``data_dir``; ``flags`` and ``settings`` are flags of ``serve``.

    Its database already has the schema, unless it is to begin with nothing (``empty``). Subclasses
    start, stop and close it.
    """

    admin_key = ADMIN_KEY

    def __init__(self, data_dir, *flags, empty=False, start=True, **settings):
        super().__init__()
        self.data_dir = data_dir if empty else new_data_dir(data_dir)
        given = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        self.flags = [*flags, *given]
        self.http = None
        if start:
            self.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _connect(self, port):
        """Create clients of the server, which listens on this port from now on."""
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        if self.http is not None:
            self.http.close()
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S, verify=NO_TLS)

    def _becomes_ready(self):
        eventually(self._ready, lambda: f"the server is not ready\n{self.log()}")
        if self.app_key is None:
            self._register()

    def _ready(self):
        assert self.runs(), self.log()
        try:
            return self.http.get("/health/readiness").status_code == 200
        except httpx.TransportError:
            return False

    def _register(self):
        self.tenant_key = self.new_tenant("tenant")["api_key"]
        self.app_key = self.new_key("app")

    def _close_clients(self):
        self._clients.close()
        self.http.close()

    # --- the API ----------------------------------------------------------------------------------

    def new_key(self, name, *, tenant_key=None, **limits):
        """Return the key of a new app, by default of the tenant that the server has from its start."""
        tenant = {"api_key": tenant_key or self.tenant_key}
        return self.new_app(tenant, name, limits=limits)["api_key"]

    @contextlib.contextmanager
    def asking(self, path, body, **headers):
        """Return a client that has sent a request, and disconnects without its answer at the end."""
        headers = {"Authorization": f"Bearer {self.app_key}", **headers}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        with closing(connection):
            request = httpx.Request("POST", self.url, json=body, headers=headers)  # its bytes
            connection.request("POST", path, request.content, dict(request.headers))
            yield connection

    def rows(self, table="ledger_calls", **where):
        """Return rows of a table as dictionaries."""
        database = self.data_dir / "fairserve.sqlite3"
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            condition = " AND ".join(f"{name} = ?" for name in where) or "1"
            query = f"SELECT * FROM {table} WHERE {condition}"
            return [dict(row) for row in connection.execute(query, tuple(where.values()))]

    def row(self, **where):
        """Return the one ledger row that matches, once it exists."""
        (row,) = eventually(lambda: self.rows(**where), f"no row with {where}")
        return row

    def cluster(self):
        return self.admin("GET", "/admin/cluster").json()

    def worker_pids(self):
        return {p["worker_id"]: p["pid"] for p in self.cluster()["processes"]}


class ChildServer(GatewayServer):
    """The command in a separate process, which keeps its port when it is started again."""

    wrapper = ()
    """Prefix: a command that runs the server's command."""
    pass_fds = ()
    """Descriptors that the process inherits."""

    def __init__(self, data_dir, *flags, env=None, **more):
        self.log_path = data_dir.with_suffix(".log")
        self.env = env or {}
        self._own_port = free_port()
        super().__init__(data_dir, *flags, **more)

    def start(self):
        self.launch()
        try:
            self._becomes_ready()
        except BaseException:
            self.kill()
            raise

    def launch(self):
        """Start the process without waiting."""
        base = [
            sys.executable,
            "-W",
            "error::ResourceWarning",
            "-m",
            "fairserve.platform.server.cli",
        ]
        where = ["--data-dir", str(self.data_dir), "--port", str(self._own_port)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.wrapper, *base, "serve", *where, *self.flags],
                env={
                    **os.environ,
                    "FAIRSERVE_ADMIN_KEY": ADMIN_KEY,
                    "HF_HUB_OFFLINE": "1",
                    **self.env,
                },
                stdout=log,
                stderr=self.errors_to(log),
                start_new_session=True,
                pass_fds=self.pass_fds,
            )
        self._connect(self._own_port)

    def errors_to(self, log):
        """Redirect the standard error of the process to its output, which is the open log."""
        return subprocess.STDOUT

    def runs(self):
        return self.process.poll() is None

    def log(self):
        return self.log_path.read_text(errors="replace")

    def last_log(self, lines):
        """Return the end of the log, for the report of a failure."""
        return "\n".join(self.log().splitlines()[-lines:])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Send Ctrl-C; return the exit code."""
        if self.runs():
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def close(self):
        self._close_clients()
        if self.runs():
            self.kill()

    def __exit__(self, *exc):
        """Stop as an operator would."""
        self._close_clients()
        self.stop()


@contextlib.contextmanager
def _eager():
    """Make servers of this process poll often, handle no signals, and fetch no tokenizers."""

    fleet = functools.partial(RunningFleet, check_s=LOOK_S)
    fleet_file = functools.partial(FleetFileWatch, poll_s=LOOK_S)
    with ExitStack() as stack:
        for place, name, value in (
            (process._Server, "capture_signals", _take_no_signals),
            # There are no tokenizers for the models of scripted workers.
            (constants, "HF_HUB_OFFLINE", True),
            (watch, "REPORT_S", REPORT_S),
            (recorder, "WRITE_S", LOOK_S),
            (changes, "INTERVAL_S", LOOK_S),
            (wiring, "RunningFleet", fleet),
            (wiring, "FleetFileWatch", fleet_file),
        ):
            stack.enter_context(mock.patch.object(place, name, value))
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())  # a server changes it
        yield


class _Eager:
    """Applies :func:`_eager` from the first server's start to the last one's end."""

    servers = 0
    stack = ExitStack()

    @classmethod
    def enter(cls):
        if not cls.servers:
            cls.stack.enter_context(_eager())
        cls.servers += 1

    @classmethod
    def leave(cls):
        cls.servers -= 1
        if not cls.servers:
            cls.stack.close()


@contextlib.contextmanager
def _take_no_signals(server):
    """Replace the server's own method, which it calls before it starts."""
    thread = threading.current_thread()
    thread.server = server
    thread.began.set()
    yield


class _ServingThread(threading.Thread):
    """Runs the command. ``server`` is uvicorn's once it starts, ``code`` the result of the command."""

    def __init__(self, settings, addition=None):
        super().__init__(name="server")
        self._settings = settings
        self._addition = addition
        self.began = threading.Event()
        self.server = self.code = None

    def run(self):
        try:
            server = process.ServerProcess(self._settings, addition=self._addition)
            self.code = server.run()
        finally:
            self.began.set()

    def wait_for_the_port(self):
        assert self.began.wait(DEADLINE_S)
        eventually(lambda: not self.is_alive() or (self.server and self.server.started))
        assert self.is_alive(), "it ended at once"
        return self.server.servers[0].sockets[0].getsockname()[1]


class ThreadServer(GatewayServer):
    """The command in a thread, in front of workers that it does not start."""

    def start(self):
        flags = ["--data-dir", str(self.data_dir), "--port", "0", *self.flags]
        given = get_command(serve.app).make_context("fairserve serve", flags).params
        given |= {"admin_key": ADMIN_KEY, "system_options": given["system_options"] or None}
        settings = settings_from(given)
        _Eager.enter()
        self._thread = _ServingThread(settings, self.addition(settings))
        self._thread.start()
        self._connect(self._thread.wait_for_the_port())
        self._becomes_ready()

    def addition(self, settings):
        """Return what another command than ``serve`` adds; None for ``serve``."""
        return

    def runs(self):
        return self._thread.is_alive()

    @property
    def application(self):
        """Return the FastAPI application, whose loop runs in another thread."""
        return self._thread.server.config.app.app

    def stop(self):
        """Drain and stop; return the exit code."""
        if self.runs():
            self._thread.server.should_exit = True
            self._thread.join(DEADLINE_S)
            assert not self.runs(), "the server does not stop"
            _Eager.leave()
        return self._thread.code

    def close(self):
        """Stop without waiting for calls in progress."""
        self._close_clients()
        if self.runs():
            server = self._thread.server
            settings = server._platform.settings
            server._platform.settings = settings.changed(drain_timeout_s=0.0)
            server.config.timeout_graceful_shutdown = 0
            self.stop()
