"""Calls of a gateway: who the client is, what the ledger has, and every way in which a call ends."""

import contextlib
import itertools
import json

import pytest
from constants import defaults
from embedding_server import EmbeddingServer
from processes import eventually
from scripted_gateway import (
    CHAT,
    chat,
    endpoint_of,
    events,
    sse,
    text_of,
    usage,
    whole,
)
from scripted_worker import ScriptedWorker

from fairserve.platform.control import options
from fairserve.platform.control.live_calls import LiveCalls

FAIRNESS = "x-gateway-inference-fairness-id"
OBJECTIVE = "x-gateway-inference-objective"
JSON = {"content_type": "application/json"}
runs = (f"run-{number}" for number in itertools.count())


def key(picker):
    return {"authorization": f"Bearer {picker.app_key}"}


def asked(gateway, body=None, **headers):
    """Return a run, the exchange and the picked endpoint of a request that names the run."""
    run = next(runs)
    exchange = gateway.exchange()
    picked = exchange.ask(
        chat("ok") if body is None else body, **{"x-interaction-id": run, **headers}
    )
    return run, exchange, picked


def finish(exchange, raw=None):
    answer = exchange.answer(sse("a") if raw is None else raw)
    exchange.end()
    assert exchange.read() is None
    return answer


def held_calls(picker):
    return {each["worker_id"]: each["calls"] for each in picker.cluster()["workers"]}


# --- the client -----------------------------------------------------------------------------------


def test_an_app_key_names_the_app_and_its_own_rules_the_user(gateway, picker):
    run, exchange, picked = asked(
        gateway, chat("ok", user="ann"), **key(picker), **{FAIRNESS: "gateway-name"}
    )
    assert {"authorization", "accept-encoding"} <= set(picked.removed)
    assert "authorization" not in picked.headers, "no worker sees the client's key"
    finish(exchange)
    row = picker.row(interaction_id=run)
    assert (row["user_id"], row["app_id"] != picker.default_app) == ("ann", True)


def test_the_fairness_id_names_a_user_of_the_default_app(gateway, picker):
    run, exchange, _ = asked(gateway, chat("ok", user="someone-else"), **{FAIRNESS: "team-a"})
    finish(exchange)
    row = picker.row(interaction_id=run)
    assert (row["app_id"], row["user_id"]) == (picker.default_app, "team-a")


def test_without_a_fairness_id_the_client_is_the_default_one(gateway, picker):
    run, exchange, _ = asked(gateway, chat("ok", user="x"), **{"x-user-id": "y"})
    finish(exchange)
    row = picker.row(interaction_id=run)
    assert (row["app_id"], row["user_id"]) == (picker.default_app, "default-flow")


def test_keys_of_others_are_passed_on(gateway):
    _, exchange, picked = asked(gateway, authorization="Bearer eyJ.of.the-gateway")
    assert "authorization" not in picked.removed
    finish(exchange)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer sk-fs-p-unknown"}, 401),
        ({"x-api-key": "sk-fs-p-unknown"}, 401),
        ({FAIRNESS: "x" * 300}, 400),
        ({FAIRNESS: "a\u200bb"}, 400),
    ],
)
def test_wrong_clients_are_rejected_before_the_body(gateway, headers, status):
    exchange = gateway.exchange()
    exchange.head(**headers)
    answer = exchange.read().immediate_response
    assert answer.status.code == status


def test_without_a_default_app_a_key_is_needed(start_picker, workers):
    picker = start_picker(workers[0])
    with picker.gateway() as gateway:
        exchange = gateway.exchange()
        exchange.head(**{FAIRNESS: "team-a"})
        assert exchange.read().immediate_response.status.code == 401


def test_a_suspended_default_app_answers_503(start_picker, workers):
    picker = start_picker(workers[0], flags=("--picker-app", "app_missing"))
    with picker.gateway() as gateway:
        exchange = gateway.exchange()
        exchange.head()
        answer = exchange.read().immediate_response
        assert answer.status.code == 503
        assert json.loads(answer.body)["error"]["code"] == "no_default_app"


def test_objectives_make_calls_background_calls_and_nothing_better(gateway, picker, workers):
    """With both workers full, an ordinary call that arrives later precedes the background call."""
    subset = [endpoint_of(workers[0])]
    first = gateway.exchange()
    first.ask(chat("ok", "x" * 500), hint=subset)
    background = gateway.exchange()
    background.head(hint=subset, **{OBJECTIVE: "sheddable", FAIRNESS: "b"})
    background.body(chat("ok", "second"))
    eventually(lambda: picker.cluster()["models"][0]["background_queued_calls"] == 1)
    finish(first)
    assert background.picked().endpoint
    finish(background)
    exchange = gateway.exchange()
    exchange.head(**{OBJECTIVE: "premium", FAIRNESS: "c"})
    exchange.body(chat("ok"))
    exchange.picked()
    finish(exchange)


# --- what is recorded -----------------------------------------------------------------------------


def test_a_complete_call_has_a_row_with_its_usage_and_times(gateway, picker):
    run, exchange, _ = asked(gateway)
    raw = sse("a", "b", "c")
    _, body = exchange.answer(raw, parts=len(raw))
    assert events(body)[-1] == "[DONE]"
    assert text_of(body) == "abc"
    exchange.end()
    row = picker.row(interaction_id=run)
    assert (row["outcome"], row["output_tokens"], row["cached_tokens"]) == ("completed", 3, 4)
    assert row["ttft_s"] is not None
    assert row["queue_delay_s"] is not None


def test_usage_is_hidden_from_a_client_that_did_not_ask(gateway):
    _, exchange, picked = asked(gateway)
    assert picked.body["stream_options"]["include_usage"]
    _, body = finish(exchange)
    assert all("usage" not in event for event in events(body)[:-1])


def test_a_client_that_asks_gets_the_usage_at_the_end(gateway):
    body = chat("ok", stream_options={"include_usage": True})
    _, exchange, _ = asked(gateway, body)
    _, answer = finish(exchange, sse("a", "b"))
    *chunks, last, done = events(answer)
    assert done == "[DONE]"
    assert last["usage"]["completion_tokens"] == 2
    assert last["choices"] == []
    assert {event["usage"] for event in chunks} == {None}


def test_an_answer_names_the_call_that_follows_it(gateway, picker):
    _, exchange, _ = asked(gateway)
    headers, body = finish(exchange)
    parent = events(body)[0]["id"]
    run = headers["x-interaction-id"]
    exchange = gateway.exchange()
    exchange.ask(chat("ok"), **{"x-interaction-id": run, "x-parent-ids": parent})
    headers, _ = finish(exchange)
    assert headers["x-fairserve-stage"] == "2"


def test_a_conversation_continues_the_run_of_its_answer(gateway):
    exchange = gateway.exchange()
    exchange.ask(chat("ok", "a question of its own"), **{FAIRNESS: "talker"})
    headers, body = finish(exchange, sse("an ", "answer"))
    history = [
        {"role": "user", "content": "ok a question of its own"},
        {"role": "assistant", "content": text_of(body)},
        {"role": "user", "content": "and another"},
    ]
    exchange = gateway.exchange()
    exchange.ask({"model": "scripted", "messages": history, "stream": True}, **{FAIRNESS: "talker"})
    after, _ = finish(exchange)
    assert after["x-interaction-id"] == headers["x-interaction-id"]
    assert after["x-fairserve-stage"] == "2"


def test_a_whole_answer_continues_a_conversation_too(gateway):
    exchange = gateway.exchange()
    exchange.ask(chat("ok", "a whole question", stream=False), **{FAIRNESS: "whole"})
    headers, body = exchange.answer(whole("a whole answer"), **JSON)
    exchange.end()
    history = [
        {"role": "user", "content": "ok a whole question"},
        json.loads(body)["choices"][0]["message"],
        {"role": "user", "content": "and another"},
    ]
    exchange = gateway.exchange()
    exchange.ask({"model": "scripted", "messages": history}, **{FAIRNESS: "whole"})
    after, _ = exchange.answer(whole("more"), **JSON)
    exchange.end()
    assert after["x-interaction-id"] == headers["x-interaction-id"]


def test_an_alias_is_the_models_name_for_the_worker_only(gateway, picker):
    path = "/admin/cluster/aliases/public-name"
    assert picker.admin("PUT", path, json={"target": "scripted"}).status_code in (200, 201)
    run, exchange, picked = asked(gateway, chat("ok") | {"model": "public-name"})
    assert picked.body["model"] == "scripted"
    _, body = finish(exchange)
    assert {event["model"] for event in events(body)[:-1]} == {"public-name"}
    assert picker.row(interaction_id=run)["model"] == "public-name"
    picker.admin("DELETE", path)


def test_embeddings_are_picked_and_counted(start_picker, tmp_path):
    with contextlib.closing(EmbeddingServer(None)) as server:
        file = tmp_path / "fleet.json"
        worker = {"id": "embedder", "url": server.url, "tasks": ["embed"]}
        file.write_text(json.dumps({"workers": [worker]}))
        picker = start_picker(flags=("--fleet-file", str(file)))
        with picker.gateway() as gateway:
            body = {"model": server.model, "input": ["a", "b"]}
            run = next(runs)
            headers = key(picker) | {"x-interaction-id": run}
            exchange = gateway.exchange()
            picked = exchange.ask(body, path="/v1/embeddings", **headers)
            assert picked.endpoint == endpoint_of(server)
            vectors = [{"object": "embedding", "index": n, "embedding": [0.5]} for n in range(2)]
            answer = {"object": "list", "data": vectors, "usage": usage(0, prompt_tokens=9)}
            got, raw = exchange.answer(json.dumps(answer).encode(), **JSON)
            exchange.end()
            assert json.loads(raw)["id"] == f"embd-{got['x-call-id']}"
        assert picker.row(interaction_id=run)["input_tokens"] == 9


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["end", "cancel"])
def test_a_client_that_leaves_while_it_waits_withdraws_its_call(gateway, picker, workers, how):
    subset = [endpoint_of(workers[0])]
    first = gateway.exchange()
    first.ask(chat("ok", "x" * 70_000), hint=subset)
    run = next(runs)
    waiting = gateway.exchange()
    waiting.head(hint=subset, **{"x-interaction-id": run})
    waiting.body(chat("ok", "z" * 70_000))
    eventually(lambda: picker.cluster()["queued_calls"] == 1)
    getattr(waiting, how)()
    row = picker.row(interaction_id=run)
    assert (row["outcome"], row["error"], row["output_tokens"]) == (
        "cancelled",
        "client disconnected",
        0,
    )
    finish(first)


@pytest.mark.parametrize("how", ["end", "cancel"])
def test_a_client_that_leaves_in_the_middle_is_charged_for_what_it_got(gateway, picker, how):
    run, exchange, _ = asked(gateway)
    exchange.answer_head()
    exchange.answer_body(sse("a", "b", finish=False, done=False))
    assert exchange.read().HasField("response_headers")
    assert exchange.read().HasField("response_body")
    getattr(exchange, how)()
    row = picker.row(interaction_id=run)
    assert (row["outcome"], row["error"], row["output_tokens"]) == (
        "cancelled",
        "client disconnected",
        2,
    )
    eventually(lambda: set(held_calls(picker).values()) == {0})


def test_a_worker_that_dies_in_the_middle_has_failed(start_picker):
    worker = ScriptedWorker()
    picker = start_picker(worker)
    with picker.gateway() as gateway:
        run, exchange, _ = asked(gateway, **key(picker))
        exchange.answer_head()
        exchange.answer_body(sse("a", finish=False, done=False))
        assert exchange.read().HasField("response_headers")
        assert exchange.read().HasField("response_body")
        worker.close()
        exchange.cancel()  # as a gateway does after a reset of the worker's stream
        row = picker.row(interaction_id=run)
    assert row["outcome"] == "failed"
    assert row["output_tokens"] == 1


def test_a_call_that_waits_longer_than_allowed_answers_503(start_picker, workers):
    picker = start_picker(workers[0], flags=("--max-queue-wait-s", "0.2"))
    with picker.gateway() as gateway:
        first = gateway.exchange()
        first.ask(chat("ok", "x" * 70_000), **key(picker))
        late = gateway.exchange().ask(chat("ok", "z" * 70_000), **key(picker))
        assert (late.status, late.error["code"]) == (503, "queue_timeout")
        finish(first)


def test_an_operator_stops_a_call(gateway, picker):
    """The client gets the reason as an event; the immediate response makes the gateway hang up."""
    run, exchange, _ = asked(gateway, **key(picker))
    exchange.answer_head()
    exchange.answer_body(sse("a", finish=False, done=False))
    assert exchange.read().HasField("response_headers")
    assert exchange.read().HasField("response_body")
    assert picker.request("DELETE", f"/v1/interactions/{run}", picker.app_key).status_code == 200
    part = exchange.read().response_body.response.body_mutation.streamed_response
    (event,) = events(part.body)
    assert event["error"]["code"] == "call_stopped"
    assert exchange.read().immediate_response.status.code == 503
    assert exchange.read() is None
    assert picker.row(interaction_id=run)["outcome"] == "cancelled"


def test_an_operator_stops_a_call_before_its_answer(gateway, picker):
    run, exchange, _ = asked(gateway, **key(picker))
    assert picker.request("DELETE", f"/v1/interactions/{run}", picker.app_key).status_code == 200
    answer = exchange.read().immediate_response
    assert answer.status.code == 503
    assert json.loads(answer.body)["error"]["code"] == "call_stopped"
    assert exchange.read() is None
    assert picker.row(interaction_id=run)["outcome"] == "cancelled"


def test_a_call_that_waits_in_its_worker_keeps_its_lease(start_picker, workers, monkeypatch):
    renewed = []
    renew = LiveCalls.renew

    def counting(self, live, now_s):
        renewed.append(live.call.call_id)
        renew(self, live, now_s)

    monkeypatch.setattr(LiveCalls, "renew", counting)
    with defaults(options, "ControlOptions", lease_s=2.0):
        picker = start_picker(workers[0])
    with picker.gateway() as gateway:
        run, exchange, _ = asked(gateway, **key(picker))
        eventually(lambda: len(renewed) >= 6, "the lease would be over by then")
        finish(exchange)
    assert picker.row(interaction_id=run)["outcome"] == "completed"


def test_a_rejected_request_has_the_workers_reason(gateway, picker):
    run, exchange, _ = asked(gateway)
    reason = {"error": {"message": "no tools here", "param": "tools", "code": "unsupported"}}
    headers, body = exchange.answer(json.dumps(reason).encode(), 400, **JSON)
    exchange.end()
    assert headers[":status"] == "400"
    assert json.loads(body)["error"]["param"] == "tools"
    assert picker.row(interaction_id=run)["outcome"] == "failed"


@pytest.mark.parametrize(
    ("status", "raw", "content_type"),
    [
        (503, b"upstream connect error at 10.0.0.7:8000", "text/plain"),
        (500, b'{"error": {"message": "CUDA at http://10.0.0.7:8000/v1"}}', "application/json"),
        (401, b'{"error": {"message": "Incorrect API key: sk-upstream-1"}}', "application/json"),
        (429, b'{"error": {"message": "org-1a2b is too fast"}}', "application/json"),
        (302, b"", "text/html"),
    ],
)
def test_a_failed_answer_hides_the_workers_secrets(gateway, picker, status, raw, content_type):
    run, exchange, _ = asked(gateway)
    headers, body = exchange.answer(raw, status, content_type=content_type)
    exchange.end()
    assert headers[":status"] == "503"
    for secret in (b"10.0.0.7", b"sk-upstream", b"org-1a2b"):
        assert secret not in body
    assert picker.row(interaction_id=run)["outcome"] == "failed"


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_a_body_has_failed(gateway, picker, status):
    run, exchange, _ = asked(gateway)
    exchange.answer_head(status, end=True)
    assert exchange.read().immediate_response.status.code == 503
    assert exchange.read() is None
    assert picker.row(interaction_id=run)["outcome"] == "failed"


@pytest.mark.parametrize("stream", [True, False])
def test_a_compressed_answer_has_failed_before_its_head_is_sent(gateway, picker, stream):
    """The client would take the error's text for compressed bytes."""
    run, exchange, _ = asked(gateway, chat("ok", stream=stream))
    exchange.answer_head(content_encoding="gzip")
    answer = exchange.read().immediate_response
    assert answer.status.code == 503
    assert json.loads(answer.body)["error"]["message"]
    assert exchange.read() is None
    assert picker.row(interaction_id=run)["outcome"] == "failed"


@pytest.mark.parametrize(
    "raw",
    [
        sse("a", "b", done=False),
        sse("a", "b", finish=False),
        sse("a", "b", done=False, finish=False) + b"data: {\n\n",
        sse("a", "b", done=False, finish=False) + b"data: 7\n\n",
        sse("a", "b", done=False, finish=False) + b'data: {"error": {"message": "x"}}\n\n',
        sse("a", "b", done=False, finish=False) + b'data: {"choices": [7]}\n\n',
    ],
    ids=["no end", "no finish reason", "no JSON", "no object", "error", "no choice"],
)
def test_a_broken_stream_ends_with_an_error_event(gateway, picker, raw):
    run, exchange, _ = asked(gateway)
    _, body = exchange.answer(raw, parts=3)
    exchange.end()
    *_, last = events(body)
    assert last["error"]["code"] == "worker_failed"
    assert text_of(body.rpartition(b"data: ")[0]) == "ab"
    row = picker.row(interaction_id=run)
    assert (row["outcome"], row["output_tokens"]) == ("failed", 2)


@pytest.mark.parametrize(
    "raw",
    [b"{", b"[]", b'{"choices": []}', b'{"choices": [{"finish_reason": null}]}', b'{"error": "x"}'],
)
def test_a_broken_whole_answer_is_an_error(gateway, picker, raw):
    run, exchange, _ = asked(gateway, chat("ok", stream=False))
    headers, body = exchange.answer(raw, **JSON)
    exchange.end()
    assert headers[":status"] in ("502", "503")
    assert json.loads(body)["error"]["message"]
    assert picker.row(interaction_id=run)["outcome"] == "failed"


def test_what_follows_the_end_of_an_answer_is_dropped(gateway, picker):
    run, exchange, _ = asked(gateway)
    _, body = exchange.answer(sse("a") + b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
    exchange.end()
    assert events(body)[-1] == "[DONE]"
    assert picker.row(interaction_id=run)["output_tokens"] == 1


def test_the_gateways_own_answer_follows_a_failed_one(gateway, picker):
    """A worker that breaks off before the gateway has sent the head: it answers by itself."""
    run, exchange, _ = asked(gateway)
    exchange.answer_head()
    exchange.answer_body(b'data: {"error": {"message": "x"}}\n\n')
    assert exchange.read().HasField("response_headers")
    assert exchange.read().HasField("response_body")
    exchange.answer_head(503, content_type="text/plain")
    assert exchange.read().HasField("response_headers")
    exchange.answer_body(b"reset", end=True)
    part = exchange.read().response_body.response.body_mutation.streamed_response
    assert (part.body, part.end_of_stream) == (b"reset", True)
    exchange.end()
    assert picker.row(interaction_id=run)["outcome"] == "failed"


# --- requests that are wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "method", "body", "status"),
    [
        (CHAT, "POST", b"{", 400),
        (CHAT, "POST", b"", 400),
        (CHAT, "POST", chat("ok") | {"model": "other"}, 404),
        (CHAT, "POST", chat("ok") | {"max_tokens": 0}, 400),
        ("/v1/responses", "POST", {"model": "scripted", "input": "x"}, 404),
        ("/tokenize", "POST", {"prompt": "x"}, 404),
        (CHAT, "DELETE", b"", 404),
    ],
)
def test_a_wrong_request_is_rejected(gateway, path, method, body, status):
    exchange = gateway.exchange()
    exchange.head(path=path, method=method)
    exchange.body(body)
    picked = exchange.picked()
    assert picked.status == status
    assert picked.headers["x-request-id"]


def test_a_request_without_a_body_is_rejected(gateway):
    exchange = gateway.exchange()
    exchange.head(end=True)
    assert exchange.read().immediate_response.status.code == 400


@pytest.mark.parametrize("declared", [True, False])
def test_a_large_body_is_rejected(start_picker, workers, declared):
    picker = start_picker(workers[0], flags=("--max-body-bytes", "2048"))
    with picker.gateway() as gateway:
        exchange = gateway.exchange()
        length = {"content-length": "5000"} if declared else {}
        exchange.head(**key(picker), **length)
        exchange.body(chat("ok", "x" * 5000), parts=10)
        picked = exchange.picked()
        assert (picked.status, picked.error["code"]) == (413, "body_too_large")
        eventually(lambda: picker.picker._server._parts.bodies.used_bytes == 0)


# --- workers --------------------------------------------------------------------------------------


def test_a_worker_gets_its_own_token(start_picker, workers, tmp_path, monkeypatch):
    monkeypatch.setenv("POOL_KEY", "sk-of-the-pool")
    file = tmp_path / "fleet.json"
    worker = {"id": "with-key", "url": workers[0].url, "api_key_env": "POOL_KEY"}
    named = {"id": "by-name", "url": workers[1].url.replace("127.0.0.1", "localhost")}
    file.write_text(json.dumps({"workers": [worker, named]}))
    picker = start_picker(flags=("--fleet-file", str(file)))
    eventually(lambda: len(picker.cluster()["workers"]) == 2)
    with picker.gateway() as gateway:
        for _ in range(3):
            _, exchange, picked = asked(gateway, **key(picker))
            assert picked.endpoint == endpoint_of(workers[0]), "a host name is no endpoint"
            assert picked.headers["authorization"] == "Bearer sk-of-the-pool"
            assert "authorization" not in picked.removed
            finish(exchange)


def test_a_server_of_another_kind_gets_as_many_calls_as_it_takes(start_picker, workers, tmp_path):
    file = tmp_path / "fleet.json"
    worker = {"id": "plain", "url": workers[0].url, "kind": "openai", "concurrency": 1}
    file.write_text(json.dumps({"workers": [worker]}))
    picker = start_picker(flags=("--fleet-file", str(file)))
    with picker.gateway() as gateway:
        _, first, picked = asked(gateway, **key(picker))
        assert "vllm_xargs" not in picked.body
        assert picked.body["stream_options"] == {"include_usage": True}
        run = next(runs)
        second, third = gateway.exchange(), gateway.exchange()
        second.head(**key(picker), **{"x-interaction-id": run})
        second.body(chat("ok"))
        queue = picker.picker._server._parts.pool.member("plain").queue.queue
        eventually(lambda: queue.waiting == 1)
        third.head(**key(picker))
        third.body(chat("ok"))
        eventually(lambda: queue.waiting == 2)
        third.cancel()
        eventually(lambda: queue.waiting == 1)
        stopped, fourth = next(runs), gateway.exchange()
        fourth.head(**key(picker), **{"x-interaction-id": stopped})
        fourth.body(chat("ok"))
        eventually(lambda: queue.waiting == 2)
        ended = picker.request("DELETE", f"/v1/interactions/{stopped}", picker.app_key)
        assert ended.status_code == 200
        assert fourth.read().immediate_response.status.code == 503
        assert picker.row(interaction_id=stopped)["outcome"] == "cancelled"
        finish(first)
        assert second.picked().endpoint
        finish(second)
        eventually(lambda: (queue.waiting, queue.sent) == (0, 0))
    assert picker.row(interaction_id=run)["outcome"] == "completed"


def test_calls_count_as_sequences_of_their_worker(gateway, picker, workers):
    """Otherwise the worker's own report would make them load of strangers."""
    pool = picker.picker._server._parts.pool
    before = {member.worker_id: member.watched.sequences for member in pool.members()}
    assert set(before.values()) == {0}
    _, exchange, _ = asked(gateway, chat("ok", n=2))
    assert sum(member.watched.sequences for member in pool.members()) == 2
    exchange.cancel()
    eventually(lambda: sum(member.watched.sequences for member in pool.members()) == 0)
