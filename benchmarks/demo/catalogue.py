"""The apps of the demo, and their registration over the management API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from fairserve.benchmarks.demo.agents import (
    coding_agent,
    question_answering,
    report_team,
    tree_of_thoughts,
)
from fairserve.benchmarks.demo.agents.session import AgentProgram
from fairserve.benchmarks.demo.workload import AppLoad


@dataclass(frozen=True, slots=True)
class DemoApp:
    """An app's program and its token profile, as for ``POST /v1/apps``."""

    program: AgentProgram
    profile: Mapping[str, Any]


APPS: Mapping[str, DemoApp] = {
    "documents": DemoApp(question_answering.answer_question, question_answering.PROFILE),
    "reports": DemoApp(report_team.write_report, report_team.PROFILE),
    "puzzles": DemoApp(tree_of_thoughts.solve, tree_of_thoughts.PROFILE),
    "code": DemoApp(coding_agent.work_on_code, coding_agent.PROFILE),
}


@dataclass(frozen=True, slots=True)
class RegisteredApp:
    """An app registered at the running server, with its key."""

    app_id: str
    api_key: str


class DemoManagement:
    """Client of the demo server's management API. Raises aiohttp's errors, or RuntimeError."""

    def __init__(self, session: aiohttp.ClientSession, url: str, admin_key: str) -> None:
        self._session = session
        self._url = url
        self._admin_key = admin_key

    async def register(
        self, loads: Sequence[AppLoad], limits: Mapping[str, int]
    ) -> dict[str, RegisteredApp]:
        """Create the tenants and their apps; return the apps by name."""
        tenant_keys: dict[str, str] = {}
        apps = {}
        for load in loads:
            if load.tenant not in tenant_keys:
                tenant = await self._post("/admin/tenants", self._admin_key, {"name": load.tenant})
                tenant_keys[load.tenant] = tenant["api_key"]
            body = {
                "name": load.app,
                "profile": APPS[load.app].profile,
                "limits": limits,
            }
            app = await self._post("/v1/apps", tenant_keys[load.tenant], body)
            apps[load.app] = RegisteredApp(app["id"], app["api_key"])
        return apps

    async def model(self, app: RegisteredApp) -> str:
        """Return the name of the only served model."""
        models = await self._send("GET", "/v1/models", app.api_key)
        return str(models["data"][0]["id"])

    async def choose(self, system: str, options: Mapping[str, Any]) -> None:
        """Change the system of the running server."""
        body = {"system": system, "parameters": options}
        await self._send("PUT", "/admin/throttling", self._admin_key, body)

    async def usage_by_app(self) -> dict[str, dict[str, int]]:
        """Return the ledger's counts by app id."""
        report = await self._send("GET", "/admin/usage?group_by=app", self._admin_key)
        return {str(row["app"]): row for row in report["items"]}

    async def _post(self, path: str, key: str, body: Mapping[str, Any]) -> Any:
        return await self._send("POST", path, key, body)

    async def _send(
        self, method: str, path: str, key: str, body: Mapping[str, Any] | None = None
    ) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        async with self._session.request(
            method, self._url + path, json=body, headers=headers
        ) as response:
            if response.status >= 400:
                text = await response.text()
                raise RuntimeError(f"{method} {path}: {response.status} {text[:500]}")
            return await response.json()
