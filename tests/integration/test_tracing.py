"""Traces of a whole server, as a collector receives them over OTLP/HTTP."""

import importlib
import json
import os
import sys
from unittest import mock

import pytest
from constants import defaults
from every_task import REQUESTS, STREAMED, embedding_fleet, serves_every_task
from opentelemetry.semconv import schemas
from otlp_collector import OtlpCollector
from processes import eventually
from server_client import PROFILE
from whole_server import WholeServer

from fairserve.platform.monitoring.tracing import call_tracer, exporting
from fairserve.platform.server import wiring
from fairserve.platform.server.settings import Settings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SEMCONV = "opentelemetry.semconv"
CLIENT, INTERNAL = 3, 1


class Traced:
    """A server and the collector that it sends its spans to."""

    def __init__(self, folder, **settings):
        self.collector = OtlpCollector()
        with mock.patch.dict(os.environ, self.collector.environment):
            self.server = WholeServer(folder, **settings)
        self.worker = self.server.worker

    def __enter__(self):
        self.server.__enter__()
        self.tenant, self.app = self.server.new_tenant_and_app("one")
        return self

    def __exit__(self, *exc):
        self.server.__exit__(*exc)
        self.collector.close()

    def chat(self, text, *, run=None, key=None, **more):
        headers = more.pop("headers", {}) | ({"x-interaction-id": run} if run else {})
        body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}
        key = key or self.app["api_key"]
        return self.server.request("POST", "/v1/chat/completions", key, json=body, headers=headers)

    def end(self, run):
        self.server.request("DELETE", f"/v1/interactions/{run}", self.app["api_key"])

    def of_run(self, run, count):
        """Return the spans of a run, once this many have arrived."""

        def found():
            spans = list(self.collector.spans)
            return [each for each in spans if each.attributes["gen_ai.conversation.id"] == run]

        return eventually(lambda: len(spans := found()) >= count and spans)

    def of(self, answer):
        """Return the span of a call by its answer, once it has arrived."""
        call_id = answer.headers["x-request-id"]

        def found():
            spans = list(self.collector.spans)
            return [s for s in spans if s.attributes.get("fairserve.request_id") == call_id]

        (span,) = eventually(found, call_id)
        return span


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with (
        embedding_fleet(folder) as (_, fleet_file),
        Traced(folder / "data", tracing="calls", fleet_file=fleet_file) as traced,
    ):
        serves_every_task(traced.server)
        yield traced


def test_a_run_is_one_trace_whose_calls_link_to_their_parents(traced):
    answers = [
        traced.chat("ok plan", run="trip", headers={"x-agent": "planner"}),
        traced.chat("ok left", run="trip", headers={"x-call-id": "left"}),
    ]
    parents = {"x-parent-ids": f"left,{answers[0].json()['id']}"}
    answers.append(traced.chat("ok join", run="trip", headers=parents, stream=True))
    traced.end("trip")
    *calls, run = traced.of_run("trip", 4)
    plan, left, join = (traced.of(answer) for answer in answers)
    assert calls == [plan, left, join]
    assert run.name == f"invoke_workflow {traced.app['id']}"
    assert {span.trace_id for span in calls} == {run.trace_id}
    assert [span.parent_id for span in (run, *calls)] == ["", *[run.span_id] * 3]
    assert [set(span.links) for span in calls] == [
        set(),
        {plan.span_id},
        {plan.span_id, left.span_id},
    ]
    assert [span.kind for span in (run, *calls)] == [INTERNAL, CLIENT, CLIENT, CLIENT]
    assert run.attributes["fairserve.calls"] == 3
    assert plan.name == "chat scripted"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.id": answers[0].json()["id"],
        "gen_ai.agent.name": "planner",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
        "fairserve.tenant": traced.tenant["id"],
        "fairserve.app": traced.app["id"],
        "fairserve.worker": "w0",
        "fairserve.outcome": "completed",
        "fairserve.stage": 1,
    }
    assert plan.attributes.items() >= expected.items()
    assert plan.attributes["fairserve.queue_time"] >= 0
    assert plan.events == ["fairserve.granted"], "it was not streamed"
    assert plan.resource["service.name"] == "fairserve"


def test_a_call_is_a_child_of_the_context_of_its_client_and_links_to_its_run(traced):
    begun = traced.chat("ok", run="of-client", headers={"traceparent": f"00-{TRACE}-{'a' * 16}-01"})
    other = traced.chat(
        "ok", run="of-client", headers={"traceparent": f"00-{'c' * 32}-{'b' * 16}-01"}
    )
    later = traced.chat("ok", run="of-client", headers={"traceparent": "00-not-a-context"})
    traced.end("of-client")
    *_, run = traced.of_run("of-client", 4)
    begun, other, later = (traced.of(answer) for answer in (begun, other, later))
    assert (run.trace_id, run.parent_id) == (TRACE, "a" * 16)
    assert (begun.trace_id, begun.parent_id) == (TRACE, "a" * 16)
    assert (other.trace_id, other.parent_id) == ("c" * 32, "b" * 16)
    assert (later.trace_id, later.parent_id) == (TRACE, run.span_id)
    assert run.span_id in begun.links
    assert run.span_id in other.links
    assert run.span_id not in later.links


def test_a_recognised_conversation_is_one_trace_without_an_interaction_id(traced):
    first = traced.chat("ok talk")
    said = [first.json()["choices"][0]["message"], {"role": "user", "content": "ok more"}]
    messages = [{"role": "user", "content": "ok talk"}, *said]
    second = traced.chat("", messages=messages)
    other = traced.chat("ok alone")
    first, second, other = (traced.of(answer) for answer in (first, second, other))
    assert second.attributes["gen_ai.conversation.id"] == first.attributes["gen_ai.conversation.id"]
    assert (second.trace_id, second.parent_id) == (first.trace_id, first.span_id)
    assert second.links == [first.span_id]
    assert (first.parent_id, other.parent_id) == ("", "")
    assert other.trace_id != first.trace_id


OPERATIONS = {
    "/v1/chat/completions": "chat scripted",
    "/v1/completions": "text_completion scripted",
    "/v1/responses": "chat scripted",
    "/v1/messages": "chat scripted",
    "/v1/embeddings": "embeddings bert",
    "/v1/rerank": "rerank bert",
}


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("named", [False, True])
def test_the_span_of_a_call_has_the_id_of_its_answer(traced, path, named):
    headers = {"x-interaction-id": f"of {path}", "x-call-id": "chosen"} if named else {}
    answer = traced.server.request(
        "POST", path, traced.app["api_key"], json=REQUESTS[path], headers=headers
    )
    assert answer.status_code == 200, answer.text
    span = traced.of(answer)
    assert span.name == OPERATIONS[path]
    assert span.attributes["gen_ai.operation.name"] == OPERATIONS[path].split()[0]
    assert span.attributes["gen_ai.response.id"] == answer.json()["id"]
    assert span.attributes["gen_ai.usage.input_tokens"] > 0
    assert ("gen_ai.request.max_tokens" in span.attributes) == (span.name.endswith("scripted"))


@pytest.mark.parametrize("path", STREAMED)
def test_the_span_of_a_streamed_call_has_the_id_of_its_events(traced, path):
    body = REQUESTS[path] | {"stream": True}
    answer = traced.server.request("POST", path, traced.app["api_key"], json=body)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    first = events[0].get("response") or events[0].get("message") or events[0]
    assert traced.of(answer).attributes["gen_ai.response.id"] == first["id"]


def test_the_worker_gets_the_context_of_the_span_with_the_flag_of_the_client(traced):
    sampled = traced.chat("ok", headers={"traceparent": f"00-{TRACE}-{'a' * 16}-01"})
    span = traced.of(sampled)
    assert traced.worker.traceparents[-1] == f"00-{TRACE}-{span.span_id}-01"
    unsampled = traced.chat("ok", headers={"traceparent": f"00-{'d' * 32}-{'a' * 16}-00"})
    assert traced.worker.traceparents[-1].startswith(f"00-{'d' * 32}-")
    assert traced.worker.traceparents[-1].endswith("-00")
    after = traced.chat("ok")  # exported after it would have been
    traced.of(after)
    ids = {span.attributes.get("fairserve.request_id") for span in traced.collector.spans}
    assert unsampled.headers["x-request-id"] not in ids


def test_rejected_and_failed_calls_are_errors_with_their_kind(traced):
    body = {"name": "limited", "profile": PROFILE, "contract": {"rpm_limit": 1}}
    limited = traced.server.call(traced.tenant["api_key"], "POST", "/v1/apps", body)["api_key"]
    assert traced.chat("ok", key=limited).status_code == 200
    rejected = traced.chat("ok", key=limited)
    failed = traced.chat("break", stream=True)
    assert (rejected.status_code, failed.status_code) == (429, 200)
    found = traced.of(rejected)
    assert found.error
    assert found.attributes["error.type"] == "contract_rpm"
    assert found.attributes["fairserve.outcome"] == "rejected"
    found = traced.of(failed)
    assert found.error
    assert found.attributes["error.type"] == "failed"
    assert found.attributes["gen_ai.usage.output_tokens"] == 2
    assert found.attributes["gen_ai.response.time_to_first_chunk"] >= 0
    assert found.events == ["fairserve.granted", "fairserve.first_token"]
    retried = traced.of(traced.chat("busy"))
    assert retried.events.count("fairserve.requeued") == 2
    assert retried.attributes["fairserve.outcome"] == "failed"


def test_spans_have_names_of_the_conventions_and_neither_prompts_nor_users(traced):
    secrets = ("my-secret-prompt", "secret-user", "CUDA error")
    for text in ("ok my-secret-prompt", "poison my-secret-prompt"):
        traced.of(traced.chat(text, user="secret-user"))
    traced.chat("ok my-secret-prompt", run="quiet", user="secret-user")
    traced.end("quiet")
    traced.of_run("quiet", 2)
    known = {
        value
        for name in ("_incubating.attributes.gen_ai_attributes", "attributes.error_attributes")
        for value in vars(importlib.import_module(f"{SEMCONV}.{name}")).values()
        if isinstance(value, str)
    }
    used = {name for span in traced.collector.spans for name in span.attributes}
    assert {name for name in used - known if not name.startswith("fairserve.")} == set()
    versions = {each.value for each in schemas.Schemas}
    assert {span.schema_url for span in traced.collector.spans} == {call_tracer.SCHEMA_URL}
    assert call_tracer.SCHEMA_URL in versions
    sent = b"".join(traced.collector.bodies)
    assert b"gen_ai.usage.input_tokens" in sent
    assert not [secret for secret in secrets if secret.encode() in sent]


def test_switched_on_content_is_in_sampled_spans_and_bounded(tmp_path):
    short = defaults(exporting, "Tracing", content_max_chars=100)
    with short, Traced(tmp_path, tracing="content") as traced:
        long = "x" * 90
        messages = [
            {"role": "system", "content": "first"},
            {"role": "user", "content": long},
            {"role": "tool", "tool_call_id": "t", "content": "found"},
            {"role": "user", "content": "ok then"},
        ]
        for stream in (False, True):
            answer = traced.server.request(
                "POST",
                "/v1/chat/completions",
                traced.app["api_key"],
                json={"model": "scripted", "messages": messages, "stream": stream},
            )
            assert answer.status_code == 200, answer.text
            its = traced.of(answer).attributes
            assert json.loads(its["gen_ai.output.messages"]) == [
                {
                    "role": "assistant",
                    "parts": [{"type": "text", "content": "one two three"}],
                    "finish_reason": "stop",
                }
            ]
            user, tool, last = json.loads(its["gen_ai.input.messages"])
            assert user["parts"] == [{"type": "text", "content": long[:88] + "..."}]
            assert tool["parts"] == [{"type": "tool_call_response", "id": "t", "response": "found"}]
            assert last == {"role": "user", "parts": [{"type": "text", "content": "ok then"}]}


def test_a_stopping_server_exports_the_open_runs(tmp_path):
    with Traced(tmp_path, tracing="calls") as traced:
        traced.chat("ok", run="open")
    names = {span.name for span in traced.collector.spans}
    assert names == {"chat scripted", f"invoke_workflow {traced.app['id']}"}


def test_without_tracing_no_context_reaches_a_worker(tmp_path):
    with Traced(tmp_path) as traced:
        traced.chat("ok", headers={"traceparent": f"00-{TRACE}-{'a' * 16}-01"})
    assert traced.worker.traceparents == [None]
    assert traced.collector.bodies == []


def test_a_missing_library_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "fairserve.platform.monitoring.tracing.exporting")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ValueError, match=r"pip install 'fairserve\[otel\]'"):
        wiring.tracing(Settings(data_dir=tmp_path, tracing="calls"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_TRACES_EXPORTER", "console")],
)
def test_an_exporter_that_is_not_there_is_rejected_by_the_name_of_its_variable(
    tmp_path, monkeypatch, name, value
):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}'; allowed: "):
        wiring.tracing(Settings(data_dir=tmp_path, tracing="calls"))
