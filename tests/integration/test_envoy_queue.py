"""A worker without our scheduler, behind its local queue: both data planes send it the same calls."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from gateway_server import ThreadServer
from installed_envoy import need_envoy
from processes import eventually
from scripted_worker import ScriptedWorker

PATH = "/v1/chat/completions"
CONCURRENCY = 2
MANY = 10
QUANTUM = "local.quantum=64"


def entry(worker, name="w", concurrency=CONCURRENCY):
    return {
        "id": name,
        "url": worker.url,
        "kind": "openai",
        "model": "scripted",
        "concurrency": concurrency,
    }


class World:
    """A server of one data plane in front of one worker; the file of its fleet may be changed."""

    def __init__(self, folder, plane):
        self.worker = ScriptedWorker()
        self.file = folder / "fleet.json"
        self.serve(entry(self.worker))
        more = ("--set", QUANTUM)
        flags = ("--fleet-file", str(self.file), "--data-plane", plane, *more)
        self.server = ThreadServer(folder / "data", *flags)
        self.pool = ThreadPoolExecutor(MANY + 4)
        if plane == "envoy":
            self.reaches_envoy("w")

    def serve(self, *entries):
        self.file.write_text(json.dumps({"workers": entries}))

    def reaches_envoy(self, name):
        """Wait until the calls of a worker need no relay."""
        found = self.server.data_dir / "envoy" / "workers.json"
        eventually(lambda: f'"{name}"' in found.read_text())

    def ask(self, text, run, *, key=None, **more):
        body = {
            "model": "scripted",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 20,
            **more,
        }
        return self.server.post(PATH, body, key, headers={"X-Interaction-Id": run})

    def start(self, text, run, **more):
        """Send a call, and return the future of its answer."""
        return self.pool.submit(self.ask, text, run, **more)

    def queue(self, name="w"):
        """Return the numbers of waiting and sent calls."""
        (found,) = (each for each in self.views() if each["worker_id"] == name)
        queue = found["local_queue"]
        return queue["waiting"], queue["sent"]

    def views(self):
        return self.server.cluster()["workers"]

    def close(self):
        self.server.close()
        self.worker.close()
        self.pool.shutdown()


@pytest.fixture(scope="module", params=["embedded", "envoy"])
def plane(request):
    if request.param == "envoy":
        need_envoy()
    return request.param


@pytest.fixture(scope="module")
def shared(tmp_path_factory, plane):
    world = World(tmp_path_factory.mktemp("queue"), plane)
    yield world
    world.close()


@pytest.fixture
def world(shared):
    """Yield the world, with an empty queue at the end."""
    yield shared
    shared.worker.release()
    eventually(lambda: shared.queue() == (0, 0), shared.queue)
    eventually(lambda: shared.server.cluster()["running_calls"] == 0)


def ending(world, running):
    """End the held calls, batch by batch, until all have answers; return these."""
    eventually(lambda: world.worker.release() or all(each.done() for each in running))
    return [each.result() for each in running]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_worker_never_has_more_calls_than_it_takes(world, stream):
    runs = [f"run-many-{stream}-{number}" for number in range(MANY)]
    running = [world.start(f"hold {run}", run, stream=stream) for run in runs]
    eventually(lambda: world.queue() == (MANY - CONCURRENCY, CONCURRENCY))
    found = ending(world, running)
    assert {answer.status_code for answer in found} == {200}
    assert world.worker.most_running == CONCURRENCY
    assert {int(answer.headers["x-fairserve-queue-ms"]) >= 0 for answer in found} == {True}
    rows = [world.server.row(interaction_id=run) for run in runs]
    assert {(row["outcome"], row["output_tokens"]) for row in rows} == {("completed", 3)}
    assert {row["worker"] for row in rows} == {"w"}


def test_a_flooding_client_does_not_delay_another(world):
    """The flood's credit ends with its first calls, which the other's one call then overtakes."""
    blocking = [world.start(f"hold block-{n}", f"run-block-{n}", user="b") for n in range(2)]
    eventually(lambda: world.queue() == (0, CONCURRENCY))
    long = " word" * 40
    flood = []
    for number in range(8):
        text = f"ok flood-{number} {number}{long}"
        flood.append(world.start(text, f"run-flood-{number}", user="flood"))
        eventually(lambda number=number: world.queue()[0] == number + 1)
    light = world.start(f"ok light{long}", "run-light", user="light")
    eventually(lambda: world.queue()[0] == len(flood) + 1)
    found = ending(world, [*blocking, *flood, light])
    assert {answer.status_code for answer in found} == {200}
    texts = [body["messages"][-1]["content"] for body in world.worker.bodies]
    order = [text.split()[1] for text in texts if text.split()[1].startswith(("flood", "light"))]
    assert order.index("light") <= 3, order


def test_a_client_that_leaves_the_queue_never_reaches_the_worker(world):
    running = [world.start(f"hold stays-{n}", f"run-stays-{n}") for n in range(CONCURRENCY)]
    eventually(lambda: world.queue() == (0, CONCURRENCY))
    messages = [{"role": "user", "content": "ok leaves"}]
    body = {"model": "scripted", "messages": messages, "max_tokens": 20}
    with world.server.asking(PATH, body, **{"X-Interaction-Id": "run-leaves"}):
        eventually(lambda: world.queue() == (1, CONCURRENCY))
    eventually(lambda: world.queue() == (0, CONCURRENCY))
    row = world.server.row(interaction_id="run-leaves")
    assert (row["outcome"], row["error"]) == ("cancelled", "client disconnected")
    assert (row["worker"], row["output_tokens"], row["input_tokens"]) == ("w", 0, 0)
    assert "ok leaves" not in world.worker.texts
    assert {answer.status_code for answer in ending(world, running)} == {200}


def test_an_operator_stops_a_call_in_the_queue(world):
    running = [world.start(f"hold runs-{n}", f"run-runs-{n}") for n in range(CONCURRENCY)]
    eventually(lambda: world.queue() == (0, CONCURRENCY))
    stopped = world.start("ok stopped", "run-stopped")
    eventually(lambda: world.queue() == (1, CONCURRENCY))
    answer = world.server.request("DELETE", "/v1/interactions/run-stopped", world.server.app_key)
    assert answer.status_code in (200, 202, 204), answer.text
    assert (stopped.result().status_code, stopped.result().json()["error"]["code"]) == (
        503,
        "call_stopped",
    )
    assert world.queue() == (0, CONCURRENCY)
    assert world.server.row(interaction_id="run-stopped")["outcome"] == "cancelled"
    assert "ok stopped" not in world.worker.texts
    assert {answer.status_code for answer in ending(world, running)} == {200}


@pytest.mark.parametrize(
    ("word", "status", "attempts"),
    [("busy", 503, {3}), ("die", 503, {2}), ("refuse", 400, {1, 2})],
)
def test_a_call_that_fails_leaves_its_place(world, word, status, attempts):
    """Also where the relay takes over, which asks the worker once more for the reason of a 400."""
    for number in range(CONCURRENCY + 1):
        text = f"{word} {number}"
        answer = world.ask(text, f"run-{word}-{number}", stream=True)
        assert answer.status_code == status, answer.text
        assert world.worker.texts.count(text) in attempts
        assert world.server.row(interaction_id=f"run-{word}-{number}")["outcome"] == "failed"
        eventually(lambda: world.queue() == (0, 0))
    eventually(lambda: world.ask("ok", f"run-{word}-after").status_code == 200)


def test_waiting_calls_of_a_lost_worker_go_to_another_one(tmp_path, plane):
    world = World(tmp_path, plane)
    try:
        running = [world.start(f"hold lost-{n}", f"run-lost-{n}") for n in range(CONCURRENCY)]
        eventually(lambda: world.queue() == (0, CONCURRENCY))
        waiting = [world.start(f"ok moves-{n}", f"run-moves-{n}") for n in range(3)]
        eventually(lambda: world.queue() == (3, CONCURRENCY))
        lost, world.worker = world.worker, ScriptedWorker()
        world.serve(entry(lost), entry(world.worker, "other"))
        eventually(lambda: [each["ready"] for each in world.views()] == [True, True])
        lost.close()
        assert {each.result().status_code for each in waiting} == {200}
        rows = [world.server.row(interaction_id=f"run-moves-{n}") for n in range(3)]
        assert {(row["outcome"], row["worker"]) for row in rows} == {("completed", "other")}
        for each in running:
            with contextlib.suppress(httpx.TransportError):  # it had begun
                each.result()
        eventually(lambda: world.server.cluster()["running_calls"] == 0)
        eventually(lambda: world.queue("other") == (0, 0))
    finally:
        world.close()


def test_a_worker_pauses_the_calls_of_the_tenant_that_asks_too_much(tmp_path, plane):
    """For as long as its ``Retry-After``, at most a minute; other tenants are served."""
    world = World(tmp_path, plane)
    try:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "later"}]}
        with world.server.asking(PATH, body, **{"X-Interaction-Id": "run-later"}):
            eventually(lambda: world.queue() == (1, 0))
            (view,) = world.views()
            assert 30 < view["local_queue"]["paused_s"] <= 60
            tenant = world.server.admin("POST", "/admin/tenants", json={"name": "other"}).json()
            key = world.server.new_app("other", tenant_key=tenant["api_key"])
            assert world.ask("ok", "run-other", key=key).status_code == 200
        eventually(lambda: world.queue() == (0, 0))
        assert world.worker.texts.count("later") == 1
    finally:
        world.close()
