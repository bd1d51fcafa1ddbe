"""The whole server in this process, with a scripted worker behind it, wired like `fairserve serve`."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock
from urllib.parse import quote

from fastapi.testclient import TestClient
from huggingface_hub import constants
from processes import eventually
from scripted_worker import ScriptedWorker

from fairserve.platform.db.engine import connect
from fairserve.platform.server.database import prepare_database
from fairserve.platform.server.lifecycle import Platform, build_app
from fairserve.platform.server.settings import Settings

PROFILE = {"stages": [{"input_tokens": 30, "output_tokens": 20}], "calls_per_interaction": 3}


class WholeServer:
    """A server that starts on entering and stops on leaving."""

    def __init__(self, folder, *, lease=None, worker=ScriptedWorker, **settings):
        """Start the server; ``lease`` makes the lease of the database from its engine."""
        self._stack = ExitStack()
        self.worker = worker()
        self.settings = Settings(data_dir=folder, worker_urls=(self.worker.url,), **settings)
        self.engine = connect(self.settings.db.effective_database_url)
        self.lease = None if lease is None else lease(self.engine)
        self.admin_key = prepare_database(self.settings.db, self.engine, self.lease)
        self.platform = Platform(self.settings, engine=self.engine, lease=self.lease)
        self.app = build_app(self.settings, self.platform)
        self.client = TestClient(self.app)

    def __enter__(self):
        # There is no tokenizer for the models of scripted workers.
        self._stack.enter_context(mock.patch.object(constants, "HF_HUB_OFFLINE", new=True))
        self._stack.callback(self.worker.close)
        self._stack.enter_context(self.client)
        eventually(
            lambda: self.client.get("/health/readiness").status_code == 200, "it is not ready"
        )
        return self

    def __exit__(self, *exc):
        self._stack.close()

    def send(self, key, method, path, **more):
        """Send a request and return the answer; no key is sent for None."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= more.pop("headers", {})
        return self.client.request(method, path, headers=headers, **more)

    def call(self, key, method, path, body=None, **query):
        """Return the JSON of an answer; errors raise."""
        answer = self.send(key, method, path, json=body, params=query)
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def new_tenant(self, name):
        """Return a tenant and an app named after it, each with its ``api_key``."""
        tenant = self.call(self.admin_key, "POST", "/admin/tenants", {"name": f"{name}-tenant"})
        body = {"name": f"{name}-app", "profile": PROFILE}
        return tenant, self.call(tenant["api_key"], "POST", "/v1/apps", body)

    def chat(self, key, text, *, headers=None, **more):
        """Send a completion; return the answer."""
        body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}
        answer = self.send(key, "POST", "/v1/chat/completions", json=body, headers=headers or {})
        assert answer.status_code == 200, answer.text
        return answer

    def end_runs(self, key):
        """End the active runs of an app: the stream of one would not end."""
        while runs := self.call(key, "GET", "/v1/interactions", state="live")["items"]:
            for run in runs:
                self.send(key, "DELETE", f"/v1/interactions/{quote(run['id'], safe='/')}")
