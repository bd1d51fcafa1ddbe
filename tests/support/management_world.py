"""The management endpoints over one database, with what they tell of written down."""

from __future__ import annotations

import time
from pathlib import Path

from control_world import MemoryJournal
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from virtual_cluster import make_call

from fairserve.platform.app import MANAGEMENT
from fairserve.platform.auth import Authenticator
from fairserve.platform.cluster import endpoints as cluster
from fairserve.platform.cluster.fleet import merge
from fairserve.platform.completions.models import Models
from fairserve.platform.control.history import History
from fairserve.platform.control.live import LiveCall
from fairserve.platform.control.port import ClusterView, RunView, WorkerView
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.engine import session_factory
from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.db.keys import ensure_admin_key
from fairserve.platform.errors import FairServeError
from fairserve.platform.settings import Settings
from fairserve.platform.throttling.preview import Previews
from fairserve.platform.user_data import endpoints as user_data
from fairserve.scheduling.registry import SYSTEMS

ROUTERS = [each.router for each in MANAGEMENT if each not in (cluster, user_data)]
"""But those that ask a running server; they have tests of their own."""


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
        for router in ROUTERS:
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
