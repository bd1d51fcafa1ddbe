"""Test the guide to load tools: its locustfile, and requests as GuideLLM sends them."""

import json
import re
import types
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import requests
from processes import eventually
from served_app import served
from whole_server import WholeServer

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/load-tools.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with WholeServer(tmp_path_factory.mktemp("server") / "data") as server:
        _, server.load_app = server.new_tenant_and_app("load")
        yield server


class Locust:
    """Stands in for Locust: a session of requests, with the failures and events of a file."""

    def __init__(self, url):
        self.url = url
        self.failures, self.fired = [], []
        self.session = requests.Session()

    def module(self):
        client = types.SimpleNamespace(headers=self.session.headers, post=self.post)
        request = types.SimpleNamespace(fire=lambda **fields: self.fired.append(fields))
        return types.SimpleNamespace(
            HttpUser=type("HttpUser", (), {"client": client}),
            constant=lambda seconds: seconds,
            events=types.SimpleNamespace(request=request),
            task=lambda function: function,
        )

    @contextmanager
    def post(self, path, *, catch_response, **more):
        with self.session.post(self.url + path, timeout=60, **more) as answer:
            answer.failure = self.failures.append
            yield answer


def load(locust, monkeypatch, *, key):
    """Run the guide's file; return its class of users."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("OPENAI_MODEL", "scripted")
    module = {}
    with mock.patch.dict("sys.modules", locust=locust.module()):
        exec(compile(code, "locustfile.py", "exec"), module)
    return module["AgentUser"]


def test_users_of_the_locustfile_make_whole_runs(server, monkeypatch):
    with served(server.client) as url:
        locust = Locust(url)
        user = load(locust, monkeypatch, key=server.load_app["api_key"])()
        user.on_start()
        user.make_run()
        locust.session.close()
    assert not locust.failures
    assert [event["name"] for event in locust.fired] == ["first token", "whole answer"] * 3
    key = server.load_app["api_key"]
    # A run that has just ended may not be listed yet.
    (run,) = eventually(lambda: server.call(key, "GET", "/v1/interactions", state="ended")["items"])
    assert (run["state"], run["user"][:7]) == ("complete", "locust-")
    graph = server.call(key, "GET", f"/v1/interactions/{run['id']}/graph")
    assert len(graph["nodes"]) == 3


def test_the_locustfile_reports_the_code_of_an_error(server, monkeypatch):
    with served(server.client) as url:
        locust = Locust(url)
        user = load(locust, monkeypatch, key="sk-fs-p-unknown")()
        user.on_start()
        user.make_run()
        locust.session.close()
    assert locust.failures == ["invalid_api_key"] * 3
    assert not locust.fired


def test_requests_of_guidellm_are_answered(server):
    """The check of the server, and the fields of a chat completion, as GuideLLM 0.8.1 sends them."""
    assert server.client.get("/health").status_code == 200
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "ok"}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_completion_tokens": 3,
        "stop": None,
        "ignore_eos": True,
    }
    key = server.load_app["api_key"]
    answer = server.request("POST", "/v1/chat/completions", key, json=body)
    assert answer.status_code == 200, answer.text
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["usage"] for event in events[:-1])
