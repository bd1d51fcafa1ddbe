"""Servers that share one order: control and API processes over one database, one Redis, one worker."""

from __future__ import annotations

from contextlib import ExitStack
from types import MappingProxyType

import psycopg
from gateway_server import ChildServer
from processes import eventually
from server_client import DEADLINE_S

SECRET = "x" * 32


class SharedServers:
    """The servers by name. The first one makes a tenant; ``new_app`` makes apps of it."""

    def __init__(self, folder, database_url, redis_url, worker_url, **settings):
        self._stack = ExitStack()
        self._folder, self.database_url = folder, database_url
        self._settings = {"worker_urls": worker_url, **settings}
        self.env = {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "FAIRSERVE_SECRET_KEY": SECRET,
            "HF_HUB_OFFLINE": "1",
        }
        self.servers = {}

    def __getitem__(self, name):
        return self.servers[name]

    def start(self, *environment, **named):
        """Launch servers, and wait until all are ready: together they may take as long as one by one."""
        started = self.launch(*environment, **named).values()
        logs, of_all_s = (
            (lambda: "\n".join(each.log() for each in started)),
            DEADLINE_S * len(started),
        )
        for server in started:
            eventually(server._ready, logs, deadline_s=of_all_s)

    def launch(self, env=None, /, *, port=None, redis_urls=MappingProxyType({}), **roles):
        """Launch servers, each with a role; all at ``port``, or each at its own. Return them by name.

        ``env`` has variables of their own; some have another address of Redis, by name.
        """
        launched = {}
        for name, role in roles.items():
            server = ChildServer(
                self._folder / name,
                env={
                    **self.env,
                    "REDIS_URL": redis_urls.get(name, self.env["REDIS_URL"]),
                    **(env or {}),
                },
                empty=True,
                start=False,
                role=role,
                **self._settings,
            )
            server._own_port = port or server._own_port
            server.data_dir.mkdir(exist_ok=True)
            server.app_key = "made by new_app"
            server.log_path.unlink(missing_ok=True)  # of an earlier process of this name
            server.launch()
            self._stack.callback(server.close)
            self.servers[name] = launched[name] = server
        return launched

    def rows(self, app):
        """Return outcome and id of the ledger's rows of an app."""
        with psycopg.connect(self.database_url) as connection:
            query = "SELECT outcome, call_id FROM ledger_calls WHERE app_id = %s"
            return connection.execute(query, (app,)).fetchall()

    def speaker(self):
        """Return the control server that speaks; None while there is none."""
        found = [each for each in self.servers.values() if each.runs() and _spoke_last(each)]
        return found[0] if len(found) == 1 else None

    def last_log(self, lines):
        """Return the ends of all logs, for the report of a failure."""
        logs = (f"{name}:\n{each.last_log(lines)}" for name, each in self.servers.items())
        return "\n".join(logs)

    def close(self):
        self._stack.close()


def _spoke_last(server):
    lines = [line for line in server.log().splitlines() if "this process " in line]
    return bool(lines) and lines[-1].endswith("speaks")
