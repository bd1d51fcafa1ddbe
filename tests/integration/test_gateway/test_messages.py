"""Anthropic's messages, with Anthropic's own client: real workers, a tool loop, errors, counting."""

import json

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from pydantic import TypeAdapter
from scripted_worker import ScriptedWorker
from server_client import PROFILE
from sse import data_of
from torch_worker import MODEL

from fairserve.platform.serving.messages import endpoint

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
EVENT = TypeAdapter(RawMessageStreamEvent)
TOOL = {
    "name": "tides",
    "description": "knows of tides",
    "input_schema": {"type": "object", "properties": {"input": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def tooled(start_server):
    """Return a server in front of a worker that calls tools on demand."""
    worker = ScriptedWorker()
    server = start_server("--worker-urls", worker.url, "--keepalive-s", "0.05")
    server.worker = worker
    yield server
    worker.close()


@pytest.fixture
def clients():
    """Return a factory of Anthropic's client, which sends ``x-api-key``."""
    opened = []

    def client(server, **more):
        options = {"api_key": server.app_key, "base_url": server.url, "max_retries": 0, **more}
        opened.append(anthropic.Anthropic(**options))
        return opened[-1]

    yield client
    for each in opened:
        each.close()


def asked(text="Hello there", **more):
    return {"model": MODEL, "max_tokens": 16, "messages": [user(text)], **more}


GREEDY = {"temperature": 0}
"""A field that the client no longer names."""


def scripted(text, **more):
    return {"model": "scripted", "max_tokens": 16, "messages": [user(text)], **more}


def user(text):
    return {"role": "user", "content": text}


def stream_of(server, body):
    """Return the data of each event of a stream, each of a type of Anthropic's client."""
    answer = server.post(PATH, {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    events = [json.loads(data) for data in data_of(answer.text)]
    names = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    for event in events:
        if event["type"] != "ping":
            EVENT.validate_python(event)
    return events


def test_a_message_is_the_answer_of_the_same_chat_call(server, clients):
    system = [{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}]
    body = asked(system=system)
    chat = server.post(
        "/v1/chat/completions",
        {
            **GREEDY,
            "model": MODEL,
            "max_tokens": 16,
            "messages": [{"role": "system", "content": "You are brief."}, *body["messages"]],
        },
    ).json()
    client = clients(server)
    raw = client.messages.with_raw_response.create(**body, extra_body=GREEDY)
    message = raw.parse()
    Message.model_validate(message.model_dump())
    assert message.content[0].text == chat["choices"][0]["message"]["content"]
    assert (message.stop_reason, message.model, message.role) == ("max_tokens", MODEL, "assistant")
    assert message.id == "msg_" + raw.headers["x-call-id"]
    assert message._request_id == raw.headers["x-request-id"]
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"]
    assert usage.output_tokens == 16
    counted = client.messages.count_tokens(model=MODEL, messages=body["messages"], system=system)
    assert counted.input_tokens == chat["usage"]["prompt_tokens"]
    with client.messages.stream(**body, extra_body=GREEDY) as stream:
        final = stream.get_final_message()
    assert (final.content[0].text, final.stop_reason) == (message.content[0].text, "max_tokens")
    assert final.usage.output_tokens == 16


def test_the_events_of_a_real_stream(server):
    start, block, *deltas, stop, end, last = stream_of(server, asked(temperature=0))
    assert (start["type"], start["message"]["content"]) == ("message_start", [])
    assert block == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert {event["type"] for event in deltas} == {"content_block_delta"}
    assert stop == {"type": "content_block_stop", "index": 0}
    assert (end["delta"]["stop_reason"], end["usage"]["output_tokens"]) == ("max_tokens", 16)
    assert last == {"type": "message_stop"}


def test_a_loop_with_a_tool_is_one_run_of_two_calls(tooled, clients):
    client = clients(tooled, default_headers={"x-claude-code-session-id": "session-1"})
    messages = [user("use tides")]
    user_id = "user_" + "a" * 64 + "_account_" + "b" * 36 + "_session_" + "c" * 36
    more = {
        "model": "scripted",
        "max_tokens": 16,
        "tools": [TOOL],
        "metadata": {"user_id": user_id},
    }
    with client.messages.stream(messages=messages, **more) as stream:
        first = stream.get_final_message()
    (use,) = first.content
    assert (first.stop_reason, use.type, use.name, use.id) == (
        *("tool_use", "tool_use", "tides", "of_tides"),
    )
    assert use.input == {"input": "ok tides"}
    other = {"x-claude-code-session-id": "session-2"}
    whole = client.messages.create(messages=messages, extra_headers=other, **more)
    assert whole.content[0].to_dict() == use.to_dict()
    result = {"type": "tool_result", "tool_use_id": use.id, "content": use.input["input"]}
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(messages=messages, **more)
    assert (second.content[0].text, second.stop_reason) == ("one two three", "end_turn")
    assert (second.usage.input_tokens, second.usage.cache_read_input_tokens) == (8, 4)
    sent = tooled.worker.bodies[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    path = "/v1/interactions/session-1/graph"
    graph = tooled.request("GET", path, tooled.app_key).json()
    assert [node["stage"] for node in graph["nodes"]] == [1, 2]
    assert tooled.rows(interaction_id="session-1")[0]["user_id"] == user_id


def test_the_events_of_a_stream_with_two_tools(tooled):
    events = stream_of(tooled, scripted("use tides winds", tools=[TOOL]))
    kinds = [(event["type"], event.get("index")) for event in events if event["type"] != "ping"]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == [
        ("message_start", None),
        *((kind, 0) for kind in block),
        *((kind, 1) for kind in block),
        ("message_delta", None),
        ("message_stop", None),
    ]


def test_a_waiting_stream_is_kept_alive_and_its_error_is_an_event(tooled, clients):
    with clients(tooled).messages.stream(**scripted("hold on")) as stream:
        events = iter(stream)
        assert next(events).type == "message_start"
        tooled.worker.release()
        assert stream.get_final_text() == "one two three"
    events = stream_of_error(tooled, scripted("error"))
    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["request_id"].startswith("call_")
    with (
        pytest.raises(anthropic.APIStatusError),
        clients(tooled).messages.stream(**scripted("error")) as stream,
    ):
        stream.until_done()


def app_with(server, **contract):
    """Return the key of an app with a contract."""
    name = f"app with {' '.join(contract)}"
    body = {"name": name, "profile": PROFILE, "contract": contract}
    return server.request("POST", "/v1/apps", server.tenant_key, json=body).json()["api_key"]


def stream_of_error(server, body):
    answer = server.post(PATH, {**body, "stream": True})
    events = [json.loads(data) for data in data_of(answer.text)]
    assert events[-1]["type"] == "error"
    return events


def test_errors_are_the_exceptions_of_the_client(tooled, clients):
    client = clients(tooled)
    for wrong, error in (
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"model": "none"}, anthropic.NotFoundError),
    ):
        with pytest.raises(error) as caught:
            client.messages.create(**scripted("ok") | wrong)
        body = caught.value.body
        assert (body["type"], body["request_id"]) == ("error", caught.value.request_id)
        assert next(iter(wrong)) in body["error"]["message"]
    with pytest.raises(anthropic.AuthenticationError) as caught:
        clients(tooled, api_key="sk-fs-unknown").messages.create(**scripted("ok"))
    assert caught.value.type == "authentication_error"
    limited = clients(tooled, api_key=app_with(tooled, rpm_limit=1))
    limited.messages.create(**scripted("ok"))
    with pytest.raises(anthropic.RateLimitError) as caught:
        limited.messages.create(**scripted("ok"))
    assert int(caught.value.response.headers["retry-after"]) > 0
    assert caught.value.body["error"]["fairserve"]["reason"] == "contract_rpm"
    with pytest.raises(anthropic.InternalServerError) as caught:
        client.messages.create(**scripted("poison"))
    assert caught.value.type == "api_error"


def test_what_no_worker_can_do_is_rejected_by_its_name(server, clients):
    client = clients(server)
    image = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    for field, more in (
        ("tools", {"tools": [TOOL]}),
        ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1025}),
        ("output_config.effort", {"output_config": {"effort": "low"}}),
        (
            "messages[0].content[0]",
            {"messages": [user([{"type": "image", "source": image}])]},
        ),
    ):
        with pytest.raises(anthropic.BadRequestError, match="cannot honour") as caught:
            client.messages.create(**asked() | more)
        assert caught.value.body["error"]["message"].startswith(f"{field}: the workers of")


def test_json_schemas_and_stop_sequences_are_honoured_by_our_engine(server, clients):
    client = clients(server)
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(**asked(max_tokens=100, output_config=wanted))
    assert json.loads(message.content[0].text)["city"] in ("Oslo", "Rome")
    greedy = asked(max_tokens=64, extra_body=GREEDY)
    whole = client.messages.create(**greedy).content[0].text
    stop = whole[10:13]
    cut = client.messages.create(**greedy, stop_sequences=[stop])
    assert cut.content[0].text == whole[: whole.index(stop)]
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)


def test_keys_in_both_headers_must_be_equal(tooled):
    key = tooled.app_key
    bearer, own = {"Authorization": f"Bearer {key}"}, {"x-api-key": key}
    statuses = [
        tooled.http.post(PATH, json=scripted("ok"), headers=headers).status_code
        for headers in (bearer, own, bearer | own, {**bearer, "x-api-key": "sk-fs-other"}, {})
    ]
    assert statuses == [200, 200, 200, 400, 401]
    assert tooled.http.get("/v1/models", headers=own).status_code == 200


def test_the_version_is_checked(tooled):
    answer = tooled.post(PATH, scripted("ok"), headers={"anthropic-version": "newest"})
    assert answer.status_code == 400
    assert "such as 2023-06-01" in answer.json()["error"]["message"]


def test_models_are_listed_in_the_format_of_the_client(tooled, clients):
    client = clients(tooled)
    (model,) = list(client.models.list())
    ModelInfo.model_validate(model.model_dump())
    assert (model.id, model.max_input_tokens) == ("scripted", 1024)
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.type == "not_found_error"


def test_counting_makes_no_call_and_is_bounded(tooled, clients, monkeypatch):
    calls = len(tooled.worker.bodies)
    client = clients(tooled)
    count = client.messages.count_tokens(model="scripted", messages=[user("x" * 40)], tools=[TOOL])
    MessageTokensCount.model_validate(count.model_dump())
    assert count.input_tokens > 10
    assert len(tooled.worker.bodies) == calls
    monkeypatch.setattr(endpoint, "MAX_COUNTS", 0)
    with pytest.raises(anthropic.RateLimitError):
        client.messages.count_tokens(model="scripted", messages=[user("x")])
    monkeypatch.undo()
    other = app_with(tooled, allowed_models=["none"])
    with pytest.raises(anthropic.PermissionDeniedError):
        clients(tooled, api_key=other).messages.count_tokens(model="scripted", messages=[user("x")])
    answer = tooled.request("POST", COUNT, tooled.app_key, content=b"x" * (65 << 20))
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
