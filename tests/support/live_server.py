"""``fairserve serve`` with an API for tests: a process with its own workers, or a thread."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time

import httpx
from data_folders import new_data_dir
from openai import OpenAI
from processes import eventually, free_port

START_S = 120
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""TLS context: servers here speak HTTP, and httpx would read all certificates a request, in 30 ms."""
PROFILE = {
    "stages": [{"input_tokens": 100, "system_tokens": 0, "output_tokens": 30}],
    "calls_per_interaction": 4,
}


class LiveServer:
    """A server that starts on entering and stops with SIGINT on leaving; ``settings`` are its flags.

    Its database already has the schema, unless it is to begin with nothing (``empty``).
    """

    def __init__(self, folder, *, env=None, empty=False, **settings):
        self.folder, self.empty = folder, empty
        self.settings = {"workers": 1, "log_level": "warning", **settings}
        self.env = env or {}
        self.admin_key = "sk-fs-a-" + secrets.token_urlsafe(32)
        self.port = None
        self.process = None
        self.log_path = folder / "server.log"
        self._clients = contextlib.ExitStack()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Start, and wait until calls are served."""
        self.launch()
        self._wait_until_ready()
        return self

    def launch(self):
        """Start the process without waiting."""
        data_dir = self.folder / "data"
        if not self.empty and not data_dir.exists() and "database_url" not in self.settings:
            new_data_dir(data_dir)
        self.port = self.settings.get("port") or free_port()
        flags = {"port": self.port, "data_dir": data_dir, **self.settings}
        arguments = [
            part
            for name, value in flags.items()
            for part in (f"--{name.replace('_', '-')}", str(value))
        ]
        log = self.log_path.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairserve.platform.server.cli", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "FAIRSERVE_ADMIN_KEY": self.admin_key,
                "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", ""),
                "FAIRSERVE_USAGE_ROLLUP_INTERVAL_S": "0.2",
                **self.env,
            },
        )
        log.close()

    def _wait_until_ready(self):
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended:\n{self.log()}")
            try:
                if (
                    httpx.get(f"{self.url}/health/readiness", timeout=5, verify=NO_TLS).status_code
                    == 200
                ):
                    return
            except httpx.TransportError:
                pass
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError(f"the server was not ready in {START_S} s:\n{self.log()}")

    def log(self):
        return self.log_path.read_text(errors="replace")[-6000:]

    def stop(self, how=signal.SIGINT):
        """Ask the server to stop; return its exit code."""
        self.process.send_signal(how)
        return self.process.wait(90)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
            raise

    def __exit__(self, *exc):
        self._clients.close()
        if self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise

    # --- the API ----------------------------------------------------------------------------------

    def request(self, method, path, key, **more):
        answer = httpx.request(
            method,
            self.url + path,
            headers={"Authorization": f"Bearer {key}"},
            timeout=60,
            verify=NO_TLS,
            **more,
        )
        assert answer.status_code < 400, f"{answer.status_code} {answer.text}\n{self.log()}"
        return answer.json()

    def admin(self, method, path, **more):
        return self.request(method, path, self.admin_key, **more)

    def new_app(self, *, name="app", profile=None, limits=None):
        """Make a new tenant with one app; return the app with its ``api_key`` and ``tenant_key``."""
        tenant = self.admin("POST", "/admin/tenants", json={"name": f"tenant of {name}"})
        body = {"name": name, "profile": profile or PROFILE, "limits": limits or {}}
        app = self.request("POST", "/v1/apps", tenant["api_key"], json=body)
        return {**app, "tenant_key": tenant["api_key"]}

    def openai(self, key, **more):
        """Return a client that is closed with the server."""
        client = OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120, **more)
        return self._clients.enter_context(client)

    def wait_for(self, path, key, condition):
        """Poll until the answer fulfils the condition; return it."""
        headers = {"Authorization": f"Bearer {key}"}
        last = []

        def ask():
            answer = httpx.get(self.url + path, headers=headers, timeout=60, verify=NO_TLS)
            last[:] = [answer.text]
            return answer if answer.status_code == 200 and condition(answer.json()) else None

        answer = eventually(ask, lambda: f"{''.join(last)}\n{self.log()}", deadline_s=180)
        return answer.json()

    def wait_for_usage(self, *, calls, complete_runs=0):
        """Return the sums of ``/admin/usage`` once the ledger has exactly this many calls.

        The row of a run follows those of its calls, perhaps in a later rollup.
        """

        def rolled_up(report):
            sums = report["sums"]
            return sums["calls"] >= calls and sums["interactions"]["complete"] >= complete_runs

        sums = self.wait_for("/admin/usage", self.admin_key, rolled_up)["sums"]
        assert sums["calls"] == calls, sums
        return sums


class SharedLiveServer(LiveServer):
    """A server in a thread, in front of the torch worker that the test process shares.

    ``worker_url`` names another one. It starts in a fraction of a second.
    """

    def __init__(self, folder, *, worker_url=None, **settings):
        super().__init__(folder, **settings)
        del self.settings["workers"], self.settings["log_level"]
        self.worker_url = worker_url

    def start(self):
        from gateway_server import ADMIN_KEY, ThreadServer
        from torch_worker import shared_worker

        self.admin_key = ADMIN_KEY
        flags = {
            "worker_urls": self.worker_url or shared_worker().url,
            "usage_rollup_interval_s": 0.2,
            **self.settings,
        }
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        self._server = ThreadServer(self.folder / "data", *arguments)
        self.port = self._server.port
        return self

    def log(self):
        return self._server.log()

    def stop(self):
        """Drain and stop; return the exit code."""
        return self._server.stop()

    def __enter__(self):
        return self.start()

    def __exit__(self, *exc):
        self._clients.close()
        self._server.close()
