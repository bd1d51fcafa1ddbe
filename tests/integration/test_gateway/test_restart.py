"""A run with several calls continues with its graph after the server restarts."""

import signal
from urllib.parse import quote

import openai
import pytest
from processes import eventually
from server_client import DEADLINE_S

from fairserve import client as agents

from .test_limits import Client

PATH = "/v1/chat/completions"
ALWAYS_OVERLOADED = ("--set", "high_watermark=0.0001", "--set", "low_watermark=0.00005")
"""Interval that makes overload begin as soon as a call is in progress."""


@pytest.fixture(scope="module")
def restarted(start_process, worker):
    return start_process("--worker-urls", worker.url, "--drain-timeout-s", "0", *ALWAYS_OVERLOADED)


class App(Client):
    """An app whose users may begin one run a minute while the workers are overloaded."""

    def __init__(self, server, name):
        super().__init__(server, name, limits={"user_rpm": 1})

    def ask(self, text, run, call=None, parents=None, **more):
        headers = {"X-Interaction-Id": run}
        if call is not None:
            headers["X-Call-Id"] = call
        if parents is not None:
            headers["X-Parent-Ids"] = ",".join(parents)
        headers |= more.pop("headers", {})
        return self.server.post(PATH, self.body(text, **more), self.key, headers=headers)

    def asked(self, *arguments, **more):
        answer = self.ask(*arguments, **more)
        assert answer.status_code == 200, answer.text
        return answer

    def read(self, run, what=""):
        path = f"/v1/interactions/{quote(run)}{what}"
        answer = self.server.request("GET", path, self.key)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def graph(self, run):
        """Return stage and parents of each call."""
        graph = self.read(run, "/graph")
        parents = {node["id"]: set() for node in graph["nodes"]}
        for parent, child in graph["edges"]:
            parents[child].add(parent)
        return {node["id"]: (node["stage"], parents[node["id"]]) for node in graph["nodes"]}

    def holding(self, run, call, parents, worker):
        """Hold a call at its worker until the server ends; leaving the block ends its connection."""
        body = self.body(f"stall {call}", stream=True)
        headers = {"X-Interaction-Id": run, "X-Call-Id": call, "X-Parent-Ids": ",".join(parents)}
        headers["Authorization"] = f"Bearer {self.key}"
        came = len(worker.bodies)
        asking = self.server.asking(PATH, body, **headers)
        return asking, lambda: eventually(lambda: len(worker.bodies) > came)


def stop(server, number):
    server.process.send_signal(number)
    server.process.wait(DEADLINE_S)


def test_a_run_keeps_graph_and_immunity_over_two_restarts(restarted, worker):
    app = App(restarted, "researchers")
    run = "report"
    app.asked("ok plan", run, "plan", ())
    app.asked("ok left", run, "left", ("plan",))
    asking, held = app.holding(run, "right", ("plan",), worker)
    with asking:
        held()
        stop(restarted, signal.SIGTERM)
    restarted.start()

    found = app.read(run)
    assert (found["state"], found["calls"], found["live_calls"]) == ("under_way", 3, 0)
    graph = app.graph(run)
    assert graph == {"plan": (1, set()), "left": (2, {"plan"}), "right": (2, {"plan"})}
    asking, held = app.holding("busy", "busy", (), worker)
    with asking:
        held()
        assert app.ask("ok", "second").status_code == 429, "a run more than the user may begin"
        app.asked("ok again", run, "right-again", ("plan",))
        assert close(app, "busy").json()["live_calls"] == 1
        stop(restarted, signal.SIGKILL)
    worker.release()
    restarted.start()
    eventually(lambda: app.read("busy")["state"] == "complete")

    app.asked("ok write", run, "write", ("left", "right-again"))
    assert app.ask("ok", run, "x", ("nowhere",)).json()["error"]["code"] == "unknown_parent"
    assert app.ask("ok", run, "plan").json()["error"]["code"] == "duplicate_call"
    assert app.ask("ok", run, user="other").status_code == 404
    expected = {
        **graph,
        "right-again": (2, {"plan"}),
        "write": (3, {"left", "right-again"}),
    }
    assert app.graph(run) == expected
    assert close(app, run).status_code == 200
    ended = eventually(lambda: (now := app.read(run))["state"] == "complete" and now)
    assert (ended["calls"], ended["opened_at"]) == (5, found["opened_at"])
    assert app.graph(run) == expected
    eventually(lambda: not restarted.rows("open_interactions", id=run), "its row stays")


def test_opened_and_client_named_runs_survive_a_restart(start_server, worker):
    server = start_server("--worker-urls", worker.url)
    app = App(server, "openers")
    for name, body in (("empty", {}), ("awaited", {"sink": "last"})):
        body = {"id": name, "user": "ann", **body}
        answer = server.request("POST", "/v1/interactions", app.key, json=body)
        assert answer.status_code == 201, answer.text
    client = agents.interaction(server.openai(app.key), user="ann", id="client")
    with client as run, run.agent("planner") as planner:
        first = complete(run.client, "ok one")
    assert server.stop() == 0
    server.start()
    client = agents.interaction(server.openai(app.key), user="ann", id="client", close=True)
    with client as run, run.agent("writer", after=planner.calls):
        second = complete(run.client, "ok two")
    first, second = (each.id.removeprefix("chatcmpl-") for each in (first, second))
    assert app.graph("client") == {first: (1, set()), second: (2, {first})}
    assert app.read("client")["state"] == "complete"
    assert app.read("empty")["state"] == "open"
    again = server.request("POST", "/v1/interactions", app.key, json={"id": "empty"})
    assert again.status_code == 409
    app.asked("ok", "awaited", "last", user="ann")
    eventually(lambda: app.read("awaited")["state"] == "complete")
    assert close(app, "empty").status_code == 200
    eventually(lambda: not server.rows("open_interactions"), "their rows stay")


def close(app, run):
    return app.server.request("POST", f"/v1/interactions/{run}/close", app.key)


def complete(client: openai.OpenAI, text):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="scripted", messages=messages, max_tokens=20)
