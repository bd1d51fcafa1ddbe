"""SIGHUP reloads the configuration file: what can change applies, the rest is logged."""

import json
import re
import signal
from contextlib import ExitStack, closing

import pytest
from gateway_server import ChildServer
from processes import eventually
from scripted_worker import ScriptedWorker

FIRST = """
log_format: text
usage_retention_days: 20
metrics_top_clients: 1
keepalive_s: 3600
fleet:
  workers:
    - {{id: a, url: "{0}"}}
"""
CHANGED = """
log_format: json
usage_retention_days: 30
metrics_top_clients: 0
keepalive_s: 0.05
host: 0.0.0.0
ledger_retention_days: 7
content_retention_days: 2
fleet:
  workers:
    - {{id: a, url: "{0}"}}
    - {{id: b, url: "{1}"}}
"""
PATH = "/v1/chat/completions"
INVALID = "usage_retention_days: 5\nkeepalive_s: 0\nfleet: {}\n"


@pytest.fixture
def workers():
    with ExitStack() as stack:
        made = [ScriptedWorker(), ScriptedWorker()]
        for worker in made:
            stack.callback(worker.close)
        yield made


CHANGES = [
    "content_retention_days",
    "keepalive_s",
    "ledger_retention_days",
    "log_format",
    "metrics_top_clients",
    "usage_retention_days",
]


def joined(server):
    return [worker["worker_id"] for worker in server.cluster()["workers"]]


def call(text):
    return {"model": "scripted", "user": "ann", "messages": [{"role": "user", "content": text}]}


def days_of_a_file(server):
    """Upload a file, and return how long it is kept."""
    form = {"files": {"file": ("in.jsonl", b"{}")}, "data": {"purpose": "batch"}}
    file = server.request("POST", "/v1/files", server.app_key, **form).json()
    return (file["expires_at"] - file["created_at"]) / 86400


def reload(server, path, text):
    """Write the file, and return the log lines from the reload on."""
    before = len(server.log())
    path.write_text(text)
    server.process.send_signal(signal.SIGHUP)
    done = ("the configuration is reloaded", "the configuration is invalid")
    eventually(lambda: any(text in server.log()[before:] for text in done), server.log)
    return server.log()[before:]


def test_sighup_reloads_the_configuration(tmp_path, workers):
    path = tmp_path / "fairserve.yaml"
    urls = [worker.url for worker in workers]
    path.write_text(FIRST.format(*urls))
    with closing(ChildServer(tmp_path / "data", "--config", str(path))) as server:
        assert server.post(PATH, call("ok")).status_code == 200
        eventually(lambda: 'user="ann"' in server.admin("GET", "/metrics").text)
        log = reload(server, path, CHANGED.format(*urls))
        assert "host has changed in the configuration and needs a restart" in log
        (line,) = (line for line in log.splitlines() if "is reloaded" in line)
        found = re.search("changed: (.*)$", json.loads(line)["message"])[1].split(", ")
        assert sorted(found) == CHANGES
        eventually(lambda: 'user="ann"' not in server.admin("GET", "/metrics").text)
        eventually(lambda: joined(server) == ["a", "b"], server.log)
        assert days_of_a_file(server) == pytest.approx(2, abs=0.1)
        body = {**call("hold"), "stream": True}
        with server.asking(PATH, body) as connection:
            assert connection.getresponse().readline().startswith(b":"), "no keep-alive comment"

        log = reload(server, path, INVALID)
        assert f"nothing changes: {path}:2: keepalive_s: Input should be greater than 0" in log
        with server.asking(PATH, body) as connection:
            assert connection.getresponse().readline().startswith(b":"), "it is as before"
        eventually(lambda: "keepalive_s" in server.cluster()["fleet_file"]["problem"])
        assert joined(server) == ["a", "b"]
        assert server.stop() == 0
