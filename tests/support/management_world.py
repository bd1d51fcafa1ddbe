"""The shipped application over one database: the whole platform of a server, without workers.

One application serves all tests of a process, because FastAPI resolves its routes at the first
request, which costs 0.1 s of CPU; every test has its own platform (0.04 s). Control and the declared
runs are real, and record what the endpoints posted. Only the background jobs are replaced: tests run
them when they need them.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from server_client import ServerClient
from sqlalchemy import Engine

from fairserve.platform.console.state import ConsoleState
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.keys import ensure_admin_key
from fairserve.platform.server.lifecycle import Platform, build_app
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.programs.service import Programs


class RecordingControl:
    """Control that records what the endpoints posted."""

    def __init__(self, real: ControlService) -> None:
        self.real = real
        self.events: list = []
        self.reopened: list = []
        self.applied: list = []
        self.closed: list = []
        self.prices: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def close_interaction(self, run_id, *, cancel, failed=False):
        await self.real.close_interaction(run_id, cancel=cancel, failed=failed)
        self.closed.append((run_id, cancel))

    def post(self, event) -> None:
        self.real.post(event)
        self.events.append(event)

    def contract_changed(self, event, *, reopened) -> None:
        self.real.contract_changed(event, reopened=reopened)
        self.events.append(event)
        if reopened:
            self.reopened.append(event)

    def use_prices(self, prices) -> None:
        self.real.use_prices(prices)
        self.prices = prices

    def apply_throttling(self, system, parameters) -> None:
        self.real.apply_throttling(system, parameters)
        self.applied.append((system, parameters))


class RecordingPrograms:
    """The declared runs; records the users whose runs were cancelled."""

    def __init__(self, real: Programs) -> None:
        self.real = real
        self.cancelled: list = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def cancel_of(self, reason, *, app_id="", tenant_id="", user="") -> None:
        self.real.cancel_of(reason, app_id=app_id, tenant_id=tenant_id, user=user)
        self.cancelled.append((reason, user or app_id or tenant_id))


class RecordingJobs:
    """A double of the background jobs that records the requested ones."""

    def __init__(self) -> None:
        self.asked: list = []

    def request(self, name) -> None:
        self.asked.append(name)

    def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""


class ManagedPlatform(Platform):
    """A platform that records the posts of its endpoints; only tests run its jobs."""

    async def start(self) -> None:
        await super().start()
        self.control = RecordingControl(self.control)
        self.programs = RecordingPrograms(self.programs)

    def _jobs(self) -> RecordingJobs:
        return RecordingJobs()


class CurrentPlatform:
    """The platform of the present test, for the application that all tests share."""

    platform: Platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self.platform, name)


@functools.cache
def shared_application() -> tuple[FastAPI, CurrentPlatform]:
    """Return the application of this process, and the platform that it starts for a client."""
    current = CurrentPlatform()
    return build_app(Settings(), current), current


class Management(ServerClient):
    """The application over one database, with an admin key, and the bodies of all answers."""

    def __init__(self, engine: Engine, data_dir: Path) -> None:
        super().__init__()
        data_dir.mkdir(parents=True, exist_ok=True)
        self.fleet_file = data_dir / "fleet.json"
        self.fleet_file.write_text("{}")  # prevents embedded workers
        settings = Settings(data_dir=data_dir, fleet_file=self.fleet_file)
        self.platform = ManagedPlatform(settings, engine=engine)
        self.hasher = self.platform.hasher
        self.app, current = shared_application()
        current.platform = self.platform
        self.state = self.app.state
        self.state.settings = settings
        self.state.console = ConsoleState(settings.console)
        self.http = self.client = TestClient(self.app)
        self.bodies: list[str] = []
        self.admin_key = ensure_admin_key(self.platform.sessions, self.hasher)

    @property
    def control(self) -> RecordingControl:
        return self.platform.control

    @property
    def programs(self) -> RecordingPrograms:
        return self.platform.programs

    @property
    def jobs(self) -> RecordingJobs:
        return self.platform.jobs

    def on_loop(self, act, *args):
        """Call ``act`` on the server's event loop."""
        return self.client.portal.call(act, *args)

    def request(self, method, path, key=None, **more):
        answer = super().request(method, path, key, **more)
        self.bodies.append(answer.text)
        return answer

    call = functools.partialmethod(ServerClient.call, status=200)

    def rejected(self, key, method, path, body=None, *, param, **query):
        """Send an invalid request; return the error, which names the field ``param``."""
        error = self.call(key, method, path, body, status=400, **query)["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param, error
        assert param in error["message"]
        return error
