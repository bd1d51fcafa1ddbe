"""Every driver of a running call keeps the same promises: one row, and one end, however it ends.

The drivers: answers to clients by four protocols, streamed and whole; calls that the server makes for
a program; and the calls of a gateway, whose bytes the picker sees.
"""

import itertools
from contextlib import ExitStack, contextmanager

import pytest
from gateway_server import ThreadServer
from processes import eventually
from scripted_gateway import PickerServer, chat, sse
from scripted_worker import ScriptedWorker

runs = (f"driven-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def worker():
    found = ScriptedWorker(kv_blocks=4096)
    yield found
    found.close()


@pytest.fixture(scope="module")
def server(worker, tmp_path_factory):
    with ExitStack() as stack:
        found = ThreadServer(
            tmp_path_factory.mktemp("server") / "data", "--worker-urls", worker.url
        )
        stack.callback(found.close)
        yield found


@pytest.fixture(scope="module")
def picker(worker, tmp_path_factory):
    with ExitStack() as stack:
        found = PickerServer(tmp_path_factory.mktemp("picker") / "data", worker)
        stack.callback(found.close)
        yield found


class Client:
    """A client's request for one answer."""

    def __init__(self, path, body):
        self.path, self.body = path, body

    @contextmanager
    def asks(self, server, text):
        """Yield the run of a call that is sent, whose client leaves at the end."""
        run = next(runs)
        headers = {"x-interaction-id": run}
        with server.asking(self.path, self.body(text), **headers) as connection:
            yield run, lambda: connection.getresponse().read()


class Program:
    """A call that the server makes for a program, which its client cancels at the end."""

    @contextmanager
    def asks(self, server, text):
        message = {"role": "user", "content": text}
        answer = server.post(
            "/v1/interactions", {"model": "scripted", "nodes": [{"id": "a", "messages": [message]}]}
        )
        assert answer.status_code == 201, answer.text
        run = answer.json()["id"]
        yield run, lambda: None
        server.request("DELETE", f"/v1/interactions/{run}", server.app_key)


class Gateway:
    """A call whose bytes a gateway carries: the test plays its connection to the worker."""

    @contextmanager
    def asks(self, server, text):
        run = next(runs)
        word, _, said = text.partition(" ")
        key = {"authorization": f"Bearer {server.app_key}"}
        with server.gateway() as gateway:
            exchange = gateway.exchange()
            exchange.ask(chat(text), **key, **{"x-interaction-id": run})
            if word == "hold":
                exchange.answer_head()
                exchange.answer_body(sse(finish=False, done=False))

            def answer():
                if word == "say":
                    exchange.answer(sse(*said))
                elif word == "refuse":
                    exchange.answer(b"{}", 400, content_type="application/json")
                exchange.end()

            yield run, answer
            exchange.cancel()


def said(text):
    return [{"role": "user", "content": text}]


def messages(text):
    return {"model": "scripted", "messages": said(text), "max_tokens": 20}


DRIVERS = {
    "chat, streamed": Client(
        "/v1/chat/completions", lambda text: {**messages(text), "stream": True}
    ),
    "chat, whole": Client("/v1/chat/completions", messages),
    "text, streamed": Client(
        "/v1/completions",
        lambda text: {"model": "scripted", "prompt": text, "max_tokens": 20, "stream": True},
    ),
    "Messages, streamed": Client("/v1/messages", lambda text: {**messages(text), "stream": True}),
    "Messages, whole": Client("/v1/messages", messages),
    "Responses, streamed": Client(
        "/v1/responses", lambda text: {"model": "scripted", "input": text, "stream": True}
    ),
    "Responses, whole": Client("/v1/responses", lambda text: {"model": "scripted", "input": text}),
    "program": Program(),
    "gateway": Gateway(),
}


@pytest.fixture(params=DRIVERS)
def driver(request):
    return DRIVERS[request.param]


@pytest.fixture
def home(request, driver):
    """Return the server of the driver."""
    return request.getfixturevalue("picker" if isinstance(driver, Gateway) else "server")


def row_of(server, run):
    """Return the only row of a run that has ended, once nothing of it is left."""
    row = server.row(interaction_id=run)
    eventually(lambda: not any(each["calls"] for each in server.cluster()["workers"]))
    assert len(server.rows(interaction_id=run)) == 1
    return row


def test_a_complete_call_is_charged_once(driver, home):
    with driver.asks(home, "say yes") as (run, answer):
        answer()
        row = row_of(home, run)
    assert (row["outcome"], row["output_tokens"], row["input_tokens"]) == ("completed", 3, 12)


def test_a_call_that_its_worker_rejects_has_failed_and_is_not_tried_again(driver, home, worker):
    before = len(worker.bodies)
    with driver.asks(home, "refuse") as (run, answer):
        answer()
        row = row_of(home, run)
    assert (row["outcome"], row["output_tokens"]) == ("failed", 0)
    assert len(worker.bodies) - before == (not isinstance(driver, Gateway))


def begun(server, run):
    """Wait until the call of a run has begun at its worker."""

    def probe():
        graph = server.request("GET", f"/v1/interactions/{run}/graph", server.app_key).json()
        return any(each["state"] == "running" for each in graph.get("nodes", ()))

    eventually(probe)


def test_a_call_whose_client_leaves_is_cancelled_at_its_worker(driver, home, worker):
    gone = worker.disconnects
    with driver.asks(home, "hold on") as (run, _):
        begun(home, run)
        if not isinstance(driver, Gateway):
            eventually(lambda: worker.holding and worker.holding[-1] == "on")
            worker.holding.clear()
    row = row_of(home, run)
    assert row["outcome"] == "cancelled"
    if not isinstance(driver, Gateway):
        eventually(lambda: worker.disconnects == gone + 1)


def test_a_call_of_a_cancelled_run_is_stopped_at_its_worker(driver, home, worker):
    gone = worker.disconnects
    with driver.asks(home, "hold on") as (run, _):
        begun(home, run)
        if not isinstance(driver, Gateway):
            eventually(lambda: worker.holding and worker.holding[-1] == "on")
            worker.holding.clear()
        stopped = home.request("DELETE", f"/v1/interactions/{run}", home.app_key)
        assert stopped.status_code == 200, stopped.text
        assert row_of(home, run)["outcome"] == "cancelled"
    if not isinstance(driver, Gateway):
        eventually(lambda: worker.disconnects == gone + 1)


def test_a_call_whose_worker_dies_before_its_start_is_tried_again_and_ends_once(
    driver, home, worker
):
    if isinstance(driver, Gateway):
        pytest.skip("the gateway chooses the next worker")
    before = len(worker.bodies)
    with driver.asks(home, "die") as (run, answer):
        answer()
        row = home.row(interaction_id=run)
    assert (row["outcome"], row["output_tokens"]) == ("failed", 0)
    assert len(worker.bodies) - before >= 1
