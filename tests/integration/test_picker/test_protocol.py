"""The endpoint picker protocol v1.0.0, case by case, with a scripted gateway.

The sections are those of its text: endpoint subset, destination endpoint, endpoint served, health.
"""

import itertools
import json

import grpc
import pytest
from processes import eventually
from scripted_gateway import (
    BUFFERED,
    CHAT,
    NONE,
    STREAMED,
    Gateway,
    chat,
    endpoint_of,
    events,
    sse,
    text_of,
    whole,
)

LB = ("envoy.lb", "x-gateway-destination-endpoint")
runs = (f"run-{number}" for number in itertools.count())


def finish(exchange):
    """Answer a request and end its stream."""
    answer = exchange.answer(sse("a"))
    exchange.end()
    assert exchange.read() is None
    return answer


def row_of(picker, run):
    return picker.row(interaction_id=run)


# --- destination endpoint ------------------------------------------------------------------------


def test_header_and_metadata_name_the_same_endpoint(gateway, workers):
    exchange = gateway.exchange()
    picked = exchange.ask(chat("ok"))
    assert picked.endpoint in map(endpoint_of, workers)
    assert picked.metadata == {LB: picked.endpoint}
    finish(exchange)


def test_the_body_is_sent_back_in_chunks_that_every_gateway_takes(gateway):
    exchange = gateway.exchange()
    exchange.head()
    exchange.body(chat("ok", "x" * 40_000), parts=7)
    picked = exchange.picked()
    assert picked.body["messages"][0]["content"] == "ok " + "x" * 40_000
    assert picked.headers["content-length"] == str(len(picked.raw))
    finish(exchange)
    exchange = gateway.exchange()
    picked = exchange.ask(chat("ok", "y" * 100_000, n=1))
    assert len(picked.parts) > 1
    assert max(picked.parts) <= 64 * 1024
    finish(exchange)


def test_nothing_is_answered_before_the_whole_body_has_arrived(gateway):
    """The prompt decides the endpoint, so that the answer to the headers waits for the body."""
    exchange = gateway.exchange()
    exchange.head()
    exchange.body(chat("ok"), end=False)
    exchange.send(request_body={"body": b"  ", "end_of_stream": True})
    picked = exchange.picked()
    assert picked.body["messages"][0]["content"] == "ok"
    finish(exchange)


def test_trailers_end_a_body_that_has_no_last_chunk(gateway):
    exchange = gateway.exchange()
    exchange.head()
    exchange.body(chat("ok"), end=False)
    exchange.send(request_trailers={})
    picked = exchange.picked()
    assert picked.trailers
    assert picked.body["model"] == "scripted"
    exchange.answer_head()
    exchange.answer_body(sse("a", "b"))
    exchange.send(response_trailers={})
    kinds = []
    while (message := exchange.read()) is not None:
        kinds.append(message.WhichOneof("response"))
        if kinds[-1] == "response_trailers":
            exchange.end()
    assert kinds == ["response_headers", "response_body", "response_trailers"]


def test_full_duplex_is_assumed_where_the_gateway_names_no_mode(gateway):
    exchange = gateway.exchange()
    exchange.head(config=False)
    exchange.body(chat("ok"))
    assert exchange.picked().endpoint
    finish(exchange)


def test_fallbacks_follow_the_first_endpoint(start_picker, workers):
    picker = start_picker(*workers, flags=("--picker-fallbacks", "3"))
    key = {"authorization": f"Bearer {picker.app_key}"}
    names = set(map(endpoint_of, workers))
    with picker.gateway() as gateway:
        exchange = gateway.exchange()
        picked = exchange.ask(chat("ok"), **key)
        assert picked.metadata == {LB: picked.endpoint}
        first, second = picked.endpoint.split(",")
        assert {first, second} == names
        finish(exchange)
        exchange = gateway.exchange()
        picked = exchange.ask(chat("ok"), hint=[second], **key)
        assert picked.endpoint == second, "the subset bounds the fallbacks, too"
        finish(exchange)


def test_a_request_for_no_ready_endpoint_answers_503(start_picker, workers):
    picker = start_picker(workers[0])
    key = {"authorization": f"Bearer {picker.app_key}"}
    assert picker.admin("POST", "/admin/cluster/workers/w0/drain").status_code == 200
    with picker.gateway() as gateway:
        picked = gateway.exchange().ask(chat("ok"), **key)
        assert (picked.status, picked.error["code"]) == (503, "no_endpoint")
        assert picked.headers["retry-after"]
        exchange = gateway.exchange()
        exchange.head(path="/v1/models", method="GET", end=True, **key)
        assert exchange.read().immediate_response.status.code == 503
        assert picker.admin("POST", "/admin/cluster/workers/w0/undrain").status_code == 200

        def served():
            exchange = gateway.exchange()
            found = exchange.ask(chat("ok"), **key)
            return found.status is None and finish(exchange)

        assert eventually(served)
    assert not picker.rows(outcome="failed"), "a call that is not placed leaves no row"


def test_a_request_over_a_limit_answers_429(gateway, picker):
    _, key = picker.register("limited", contract={"rpm_limit": 1})
    exchange = gateway.exchange()
    assert exchange.ask(chat("ok"), authorization=f"Bearer {key}").endpoint
    finish(exchange)
    picked = gateway.exchange().ask(chat("ok"), authorization=f"Bearer {key}")
    assert picked.status == 429
    assert picked.error["code"] == "rate_limit_exceeded"
    assert picked.error["fairserve"]["reason"] == "contract_rpm"
    assert int(picked.headers["retry-after"]) > 0
    assert picked.headers["x-ratelimit-remaining-requests"] == "0"
    assert picked.headers["content-type"] == "application/json"


# --- endpoint subset ------------------------------------------------------------------------------


def test_the_endpoint_is_picked_from_the_subset(gateway, workers):
    for worker in (*workers, *workers):
        exchange = gateway.exchange()
        subset = [endpoint_of(worker), "10.9.9.9:1"]
        assert exchange.ask(chat("ok"), hint=subset).endpoint == endpoint_of(worker)
        finish(exchange)


def test_a_subset_may_be_a_text_with_commas(gateway, workers):
    exchange = gateway.exchange()
    name = endpoint_of(workers[1])
    assert exchange.ask(chat("ok"), hint=f"10.9.9.9:1, {name}").endpoint == name
    finish(exchange)


@pytest.mark.parametrize("hint", [[], "", ["10.9.9.9:1"], 7])
def test_an_empty_subset_and_one_without_an_eligible_endpoint_answer_503(gateway, hint):
    picked = gateway.exchange().ask(chat("ok"), hint=hint)
    assert (picked.status, picked.error["code"]) == (503, "no_endpoint")


def test_a_subset_holds_for_requests_that_are_no_calls(gateway, workers):
    name = endpoint_of(workers[1])
    exchange = gateway.exchange()
    exchange.head(path="/v1/models", method="GET", end=True, hint=[name])
    message = exchange.read()
    (header,) = message.request_headers.response.header_mutation.set_headers
    assert header.header.raw_value.decode() == name
    exchange.answer_head(content_type="application/json")
    assert exchange.read().HasField("response_headers")
    exchange.answer_body(b'{"data": []}', end=True)
    part = exchange.read().response_body.response.body_mutation.streamed_response
    assert (part.body, part.end_of_stream) == (b'{"data": []}', True)
    exchange.end()
    assert exchange.read() is None


# --- endpoint served ------------------------------------------------------------------------------


def test_the_endpoint_that_served_is_credited(gateway, picker, workers):
    run = next(runs)
    exchange = gateway.exchange()
    picked = exchange.ask(chat("ok"), **{"x-interaction-id": run})
    other = next(name for name in map(endpoint_of, workers) if name != picked.endpoint)
    headers, _ = exchange.answer(sse("a", "b"), served=other)
    exchange.end()
    assert exchange.read() is None
    served = {endpoint_of(worker): f"w{number}" for number, worker in enumerate(workers)}[other]
    assert headers["x-fairserve-worker"] == served
    assert row_of(picker, run)["worker"] == served
    eventually(lambda: {each["calls"] for each in picker.cluster()["workers"]} == {0})


@pytest.mark.parametrize("served", ["10.9.9.9:1", "", None])
def test_an_unknown_endpoint_that_served_changes_nothing(gateway, picker, workers, served):
    run = next(runs)
    exchange = gateway.exchange()
    picked = exchange.ask(chat("ok"), **{"x-interaction-id": run})
    exchange.answer(sse("a"), served=served)
    exchange.end()
    first = {endpoint_of(worker): f"w{number}" for number, worker in enumerate(workers)}
    assert row_of(picker, run)["worker"] == first[picked.endpoint]


# --- modes of the bodies --------------------------------------------------------------------------


def test_buffered_bodies(gateway, picker):
    run = next(runs)
    exchange = gateway.exchange(request=BUFFERED, response=BUFFERED)
    exchange.head(**{"x-interaction-id": run})
    assert exchange.read().HasField("request_headers"), "the body is sent after this answer"
    exchange.body(chat("ok"))
    picked = exchange.picked()
    assert picked.endpoint == picked.metadata[LB]
    assert picked.headers["content-length"] == str(len(picked.raw))
    exchange.answer_head()
    assert exchange.read().HasField("response_headers")
    exchange.answer_body(sse("a", "b"), end=True)
    common = exchange.read().response_body.response
    assert text_of(common.body_mutation.body) == "ab"
    length = common.header_mutation.set_headers[0].header
    assert int(length.raw_value) == len(common.body_mutation.body)
    exchange.end()
    row = row_of(picker, run)
    assert (row["outcome"], row["output_tokens"]) == ("completed", 2)


def test_a_buffered_error_gets_our_status(gateway):
    exchange = gateway.exchange(request=BUFFERED, response=BUFFERED)
    exchange.head()
    exchange.body(chat("ok"))
    exchange.picked()
    exchange.answer_head(500, content_type="application/json")
    assert exchange.read().HasField("response_headers")
    exchange.answer_body(b'{"error": {"message": "boom at 10.0.0.7:8000"}}', end=True)
    common = exchange.read().response_body.response
    found = {each.header.key: each.header.raw_value for each in common.header_mutation.set_headers}
    assert found[":status"] == b"503"
    assert int(found["content-length"]) == len(common.body_mutation.body)
    assert b"10.0.0.7" not in common.body_mutation.body


def test_a_streamed_answer_is_answered_chunk_by_chunk(gateway, picker):
    run = next(runs)
    exchange = gateway.exchange(response=STREAMED)
    exchange.ask(chat("ok"), **{"x-interaction-id": run})
    exchange.answer_head()
    assert exchange.read().HasField("response_headers")
    body = b""
    raw = sse("a", "b", "c")
    for start in range(0, len(raw), 100):
        exchange.answer_body(raw[start : start + 100], end=start + 100 >= len(raw))
        mutation = exchange.read().response_body.response.body_mutation
        assert mutation.WhichOneof("mutation") in ("body", "clear_body")
        body += mutation.body
    assert text_of(body) == "abc"
    assert events(body)[-1] == "[DONE]"
    exchange.end()
    assert row_of(picker, run)["output_tokens"] == 3


def test_an_answer_that_is_not_shown_counts_as_expected(gateway, picker):
    run = next(runs)
    exchange = gateway.exchange(response=NONE)
    picked = exchange.ask(chat("ok"), **{"x-interaction-id": run})
    assert "stream_options" not in picked.body, "nothing would remove its usage from the answer"
    exchange.answer_head()
    assert exchange.read().HasField("response_headers")
    exchange.end()
    assert exchange.read() is None
    row = row_of(picker, run)
    assert (row["outcome"], row["output_tokens"]) == ("completed", 20)


@pytest.mark.parametrize("mode", [NONE, STREAMED])
def test_a_gateway_that_sends_no_whole_bodies_is_rejected(gateway, mode):
    exchange = gateway.exchange(request=mode)
    exchange.head()
    answer = exchange.read().immediate_response
    assert answer.status.code == 500
    assert json.loads(answer.body)["error"]["code"] == "gateway_configuration"


def test_a_stream_that_does_not_begin_with_a_request_is_rejected(gateway):
    exchange = gateway.exchange()
    exchange.answer_head()
    with pytest.raises(grpc.RpcError) as error:
        exchange.read()
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


# --- health ---------------------------------------------------------------------------------------


def test_health_services(gateway, picker):
    for service in ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
        assert gateway.health(service) == "SERVING", service
    with pytest.raises(grpc.RpcError) as error:
        gateway.health("other")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_draining_picker_is_live_and_not_ready(start_picker, workers):
    picker = start_picker(workers[0])
    with picker.gateway() as gateway:
        exchange = gateway.exchange()
        exchange.ask(chat("ok"), authorization=f"Bearer {picker.app_key}")
        picker._thread.server.should_exit = True  # as a signal does
        eventually(lambda: gateway.health("readiness") == "NOT_SERVING")
        assert gateway.health("liveness") == "SERVING"
        assert gateway.health("envoy.service.ext_proc.v3.ExternalProcessor") == "NOT_SERVING"
        late = gateway.exchange().ask(chat("ok"), authorization=f"Bearer {picker.app_key}")
        assert (late.status, late.error["code"]) == (503, "draining")
        _, body = exchange.answer(sse("a"))
        assert text_of(body) == "a"
        exchange.end()
        assert exchange.read() is None
    assert picker.stop() == 0
    assert [row["outcome"] for row in picker.rows()] == ["completed"]


def test_tls_with_a_certificate_of_our_own(start_picker, workers, tmp_path):
    from fairserve.platform.picker.certificate import self_signed

    key, certificate = self_signed("127.0.0.1")
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    for path, content in zip(files, (certificate, key), strict=True):
        path.write_bytes(content)
    picker = start_picker(workers[0], flags=("--picker-tls", str(tmp_path)))
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate)
    with Gateway(picker.picker.port, credentials) as gateway:
        assert gateway.health("readiness") == "SERVING"
        exchange = gateway.exchange()
        assert exchange.ask(chat("ok"), authorization=f"Bearer {picker.app_key}").endpoint
        finish(exchange)


def test_a_whole_answer_has_the_id_of_its_call(gateway, picker):
    run = next(runs)
    exchange = gateway.exchange()
    picked = exchange.ask(chat("ok", stream=False), **{"x-interaction-id": run})
    assert picked.body["stream"] is False
    assert "stream_options" not in picked.body
    headers, body = exchange.answer(whole("hello"), parts=3, content_type="application/json")
    assert json.loads(body)["choices"][0]["message"]["content"] == "hello"
    assert json.loads(body)["id"] == f"chatcmpl-{headers['x-call-id']}"
    exchange.end()
    row = row_of(picker, run)
    assert (row["outcome"], row["output_tokens"], row["cached_tokens"]) == ("completed", 3, 4)
    assert row["ttft_s"] is None


def test_the_path_may_have_a_prefix_of_the_gateway(gateway):
    exchange = gateway.exchange()
    assert exchange.ask(chat("ok"), path=f"/llm/v7{CHAT}?api-version=1").endpoint
    finish(exchange)
