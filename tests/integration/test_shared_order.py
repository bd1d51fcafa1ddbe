"""Several servers share one fair order through Redis: any of them takes calls, one row each, one limit."""

import subprocess
import sys
from contextlib import ExitStack

import psycopg
import pytest
from gateway_server import ChildServer
from scripted_worker import ScriptedWorker

COMMAND = [sys.executable, "-m", "fairserve.platform.server.cli"]


class SharedServers:
    """Servers of given roles over one database and one Redis; the first control has the admin key."""

    def __init__(self, folder, postgres_url, redis_url, worker_url):
        self._stack, self.app_key = ExitStack(), None
        self.env = {
            "DATABASE_URL": postgres_url,
            "REDIS_URL": redis_url,
            "FAIRSERVE_SECRET_KEY": "x" * 32,
            "HF_HUB_OFFLINE": "1",
        }
        self.folder, self.worker_url = folder, worker_url
        subprocess.run([*COMMAND, "db", "upgrade", "--database-url", postgres_url], check=True)

    def add(self, name, role, **flags):
        server = ChildServer(
            self.folder / name,
            env=self.env,
            start=False,
            role=role,
            worker_urls=self.worker_url,
            usage_rollup_interval_s=0.2,
            **flags,
        )
        server.app_key = self.app_key  # the database has its tenant and app already
        server.start()
        self.app_key = server.app_key
        self._stack.enter_context(server)
        return server

    def close(self):
        self._stack.close()


@pytest.fixture
def servers(tmp_path, postgres_url, redis_url):
    worker = ScriptedWorker()
    servers = SharedServers(tmp_path, postgres_url, redis_url, worker.url)
    yield servers
    servers.close()
    worker.close()


def test_api_servers_share_one_order(servers, postgres_url):
    control = servers.add("control", "control")
    first, second = (servers.add(name, "api") for name in ("first", "second"))
    for number in range(6):
        server = (first, second)[number % 2]
        answer = server.post(
            "/v1/chat/completions",
            {"model": "scripted", "messages": [{"role": "user", "content": "ok"}]},
            headers={"X-Interaction-Id": "r"},
        )
        assert answer.status_code == 200, answer.text
    def rows():
        with psycopg.connect(postgres_url) as connection:
            return connection.execute(
                "SELECT outcome, count(*) FROM ledger_calls GROUP BY outcome"
            ).fetchall()
    from processes import eventually
    eventually(lambda: rows() == [("completed", 6)], lambda: str(rows()) + control.log()+first.log())
