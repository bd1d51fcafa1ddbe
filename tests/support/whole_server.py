"""The whole server in this process, behind scripted workers, wired like `fairserve serve`.

Requests go to the application without a network; :mod:`served_app` puts it on a port.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from unittest import mock
from urllib.parse import quote

from fastapi.testclient import TestClient
from huggingface_hub import constants
from processes import eventually
from scripted_worker import ScriptedWorker
from server_client import ServerClient

from fairserve.platform.db.engine import connect
from fairserve.platform.server.database import prepare_database
from fairserve.platform.server.lifecycle import Platform, build_app
from fairserve.platform.server.settings import Settings


class WholeServer(ServerClient):
    """A server that starts on entering and stops on leaving."""

    def __init__(
        self,
        data_dir,
        *,
        lease=None,
        worker=ScriptedWorker,
        workers=1,
        clock=time.monotonic,
        **settings,
    ):
        """Start workers; ``lease`` makes the lease of the database from its engine."""
        super().__init__()
        self._stack = ExitStack()
        self.data_dir = data_dir
        self.workers = [worker() for _ in range(workers)]
        self.worker = self.workers[0]
        urls = tuple(each.url for each in self.workers)
        self.settings = Settings(data_dir=data_dir, worker_urls=urls, **settings)
        self.engine = connect(self.settings.db.effective_database_url)
        self.lease = None if lease is None else lease(self.engine)
        self.admin_key = prepare_database(self.settings.db, self.engine, self.lease)
        self.platform = Platform(self.settings, engine=self.engine, lease=self.lease, clock=clock)
        self.app = build_app(self.settings, self.platform)
        self.http = self.client = TestClient(self.app)

    def __enter__(self):
        # There is no tokenizer for the models of scripted workers.
        self._stack.enter_context(mock.patch.object(constants, "HF_HUB_OFFLINE", new=True))
        for worker in self.workers:
            self._stack.callback(worker.close)
        self._stack.enter_context(self.client)
        eventually(
            lambda: self.client.get("/health/readiness").status_code == 200, "it is not ready"
        )
        return self

    def __exit__(self, *exc):
        self._clients.close()
        self._stack.close()

    def new_tenant_and_app(self, name):
        """Return a tenant and an app named after it, each with its ``api_key``."""
        tenant = self.new_tenant(f"{name}-tenant")
        return tenant, self.new_app(tenant, f"{name}-app")

    def chat(self, key, text, *, headers=None, **more):
        """Send a completion; return the answer."""
        body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}
        answer = self.post("/v1/chat/completions", body, key, headers=headers or {})
        assert answer.status_code == 200, answer.text
        return answer

    def end_runs(self, key):
        """End the active runs of an app: the stream of one would not end."""
        while runs := self.call(key, "GET", "/v1/interactions", state="live")["items"]:
            for run in runs:
                self.request("DELETE", f"/v1/interactions/{quote(run['id'], safe='/')}", key)
