"""Servers that share one order: control and API processes over one database, one Redis, one worker."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack

import psycopg
import redis
from gateway_server import ChildServer
from processes import eventually, free_port

SECRET = "x" * 32


class RedisProcess:
    """A Redis of its own, which tests kill and start again; it keeps nothing unless it is to."""

    def __init__(self, folder, *, keeps=False):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder, self._keeps = folder, keeps
        folder.mkdir(exist_ok=True)
        self.start()

    def start(self):
        kept = ["--appendonly", "yes" if self._keeps else "no", "--appendfsync", "always"]
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        self.process = subprocess.Popen(
            ["redis-server", *where, "--save", "", *kept], stdout=subprocess.DEVNULL
        )
        eventually(self._answers, "Redis does not start")

    def _answers(self):
        try:
            with redis.Redis(port=self.port) as client:
                return client.ping()
        except redis.ConnectionError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def empty(self):
        """Remove what it keeps; it does not run."""
        shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)

    def close(self):
        self.process.terminate()
        self.process.wait()


class SharedServers:
    """The servers by name. The first one makes a tenant; ``new_app`` makes apps of it."""

    def __init__(self, folder, database_url, redis_url, worker_url, **settings):
        self._stack = ExitStack()
        self._folder, self.database_url = folder, database_url
        self._settings = {"worker_urls": worker_url, **settings}
        self._env = {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "FAIRSERVE_SECRET_KEY": SECRET,
            "HF_HUB_OFFLINE": "1",
        }
        self.servers = {}

    def __getitem__(self, name):
        return self.servers[name]

    def start(self, **roles):
        """Start servers, each with a role, at a time."""
        started = []
        for name, role in roles.items():
            server = ChildServer(
                self._folder / name,
                env=self._env,
                empty=True,
                start=False,
                role=role,
                **self._settings,
            )
            server.data_dir.mkdir(exist_ok=True)
            server.app_key = "made by new_app"
            server.log_path.unlink(missing_ok=True)  # of an earlier process of this name
            server.launch()
            self._stack.callback(server.close)
            self.servers[name] = server
            started.append(server)
        for server in started:
            eventually(server._ready, lambda: "\n".join(each.log() for each in started))

    def rows(self, app):
        """Return outcome and id of the ledger's rows of an app."""
        with psycopg.connect(self.database_url) as connection:
            query = "SELECT outcome, call_id FROM ledger_calls WHERE app_id = %s"
            return connection.execute(query, (app,)).fetchall()

    def speaker(self):
        """Return the control server that speaks; None while there is none."""
        found = [each for each in self.servers.values() if each.runs() and _spoke_last(each)]
        return found[0] if len(found) == 1 else None

    def close(self):
        self._stack.close()


def _spoke_last(server):
    lines = [line for line in server.log().splitlines() if "this process " in line]
    return bool(lines) and lines[-1].endswith("speaks")
