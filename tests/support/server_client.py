"""The client of every server that tests start: requests, apps and usage over its API."""

from __future__ import annotations

import ssl
from contextlib import ExitStack

import openai
from processes import eventually

DEADLINE_S = 90
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""TLS context: servers here speak HTTP, and httpx would read all certificates a client, in 30 ms."""
PROFILE = {
    "stages": [{"input_tokens": 30, "system_tokens": 0, "output_tokens": 20}],
    "calls_per_interaction": 3,
}


class ServerClient:
    """Requests to a server. Subclasses set ``http``, which sends them, ``url`` and ``admin_key``."""

    app_key = None

    def __init__(self):
        self._clients = ExitStack()

    def log(self):
        return "its log is that of the test"

    def request(self, method, path, key=None, **more):
        """Send a request and return the answer; no key is sent for None."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        headers |= more.pop("headers", {})
        return self.http.request(method, path, headers=headers, **more)

    def post(self, path, body, key=None, **more):
        return self.request("POST", path, key or self.app_key, json=body, **more)

    def admin(self, method, path, **more):
        return self.request(method, path, self.admin_key, **more)

    def call(self, key, method, path, body=None, *, status=None, **query):
        """Return the JSON of an answer that succeeds, or has this status."""
        answer = self.request(method, path, key, json=body, params=query or None)
        expected = answer.status_code < 300 if status is None else answer.status_code == status
        assert expected, f"{method} {path}: {answer.status_code} {answer.text}\n{self.log()}"
        return answer.json() if answer.content else None

    def new_tenant(self, name):
        """Return a new tenant, with its ``api_key``."""
        return self.call(self.admin_key, "POST", "/admin/tenants", {"name": name}, status=201)

    def new_app(self, tenant=None, name="app", **more):
        """Return a new app, by default of a new tenant; it has its ``api_key`` and ``tenant_key``."""
        key = (tenant or self.new_tenant(f"tenant of {name}"))["api_key"]
        body = {"name": name, "profile": PROFILE, **more}
        return {**self.call(key, "POST", "/v1/apps", body, status=201), "tenant_key": key}

    def openai(self, key=None, **more):
        """Return a client that is closed with the server."""
        options = {"max_retries": 0, "timeout": DEADLINE_S, **more}
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key or self.app_key, **options)
        return self._clients.enter_context(client)

    def wait_for(self, path, key, condition):
        """Poll until the answer fulfils the condition; return it."""
        last = []

        def ask():
            answer = self.request("GET", path, key)
            last[:] = [answer.text]
            return answer if answer.status_code == 200 and condition(answer.json()) else None

        return eventually(ask, lambda: f"{''.join(last)}\n{self.log()}", deadline_s=180).json()

    def wait_for_report(self, path, condition):
        """Poll a usage report until it fulfils the condition; return it. Its rows are summed up soon."""

        def fulfils(report):
            found = condition(report)
            if not found:
                self.call(self.admin_key, "POST", "/admin/jobs/rollup/run")
            return found

        return self.wait_for(path, self.admin_key, fulfils)

    def wait_for_usage(self, *, calls, complete_runs=0):
        """Return the sums of ``/admin/usage`` once the ledger has exactly this many calls.

        The row of a run follows those of its calls, perhaps in a later rollup.
        """

        def rolled_up(report):
            sums = report["sums"]
            return sums["calls"] >= calls and sums["interactions"]["complete"] >= complete_runs

        sums = self.wait_for_report("/admin/usage", rolled_up)["sums"]
        assert sums["calls"] == calls, sums
        return sums
