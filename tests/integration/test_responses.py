"""OpenAI's SDK gets responses from the shipped server, in front of scripted workers."""

import asyncio
import itertools
import json
import threading

import httpx
import openai
import pytest
from constants import defaults
from openai import OpenAI
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from processes import eventually
from pydantic import BaseModel, TypeAdapter
from served_app import served
from sqlalchemy import func, select, update
from whole_server import WholeServer

from fairserve.interactions.tracking.conversation import Conversation
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.responses import ConversationItem, StoredResponse
from fairserve.platform.serving import options
from fairserve.platform.serving.decision import check
from fairserve.platform.serving.responses import conversation_endpoints
from fairserve.platform.serving.responses.items import read_items
from fairserve.platform.serving.responses.repository import delete_before

DEADLINE_S = 90
TIDES = {
    "type": "function",
    "name": "tides",
    "parameters": {"type": "object", "properties": {"input": {"type": "string"}}},
}
EVENT = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "data"
    with (
        defaults(options, "StoreOptions", max_per_app=30),
        defaults(options, "BackgroundOptions", max_per_app=1),
        WholeServer(folder) as server,
        served(server.client) as url,
    ):
        server.url = url
        yield server


@pytest.fixture(scope="module")
def owner(server):
    return server.new_tenant_and_app("owner")


@pytest.fixture(scope="module")
def key(owner):
    return owner[1]["api_key"]


@pytest.fixture(scope="module")
def client(server, key):
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        yield client


def ask(client, text, **fields):
    return client.responses.create(model="scripted", input=text, **fields)


def run_of(client, text, **fields):
    """Return a response, and the run and the call of its headers."""
    raw = client.responses.with_raw_response.create(model="scripted", input=text, **fields)
    return raw.parse(), raw.headers["x-interaction-id"], raw.headers["x-call-id"]


def graph(server, key, run):
    return server.call(key, "GET", f"/v1/interactions/{run}/graph")


def events(server, key, body):
    """Return the events of a stream, each validated strictly against the SDK's types."""
    found = []
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": "scripted", "stream": True, **body}
    with httpx.stream(
        "POST", f"{server.url}/v1/responses", json=body, headers=headers, timeout=60
    ) as answer:
        assert answer.status_code == 200, answer.read()
        for block in answer.read().decode().split("\n\n"):
            if block and not block.startswith(":"):
                name, data = block.split("\n", 1)
                event = json.loads(data.removeprefix("data: "))
                assert name == f"event: {event['type']}"
                EVENT.validate_python(event)
                found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


BEGIN = ["response.created", "response.in_progress"]
TEXT = [
    "response.output_item.added",
    "response.content_part.added",
    *["response.output_text.delta"] * 3,
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
REASONING = [
    "response.output_item.added",
    "response.content_part.added",
    *["response.reasoning_text.delta"] * 2,
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ({"input": "say hello"}, TEXT),
        ({"input": "think hello"}, REASONING + TEXT),
        ({"input": "use tides", "tools": [TIDES]}, CALL),
        ({"input": "use tides moon", "tools": [TIDES]}, CALL + CALL),
    ],
    ids=["text", "reasoning", "call", "calls"],
)
def test_events_have_the_order_and_the_types_of_the_sdk(server, key, body, kinds):
    found = events(server, key, body)
    assert [event["type"] for event in found] == [*BEGIN, *kinds, "response.completed"]
    last = Response.model_validate(found[-1]["response"])
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["response"]["output"] == done
    added = [event for event in found if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == list(range(len(done)))
    assert (last.usage.input_tokens, last.usage.input_tokens_details.cached_tokens) == (12, 4)
    whole = server.call(key, "POST", "/v1/responses", {"model": "scripted", **body})
    masked = {"id": "", "created_at": 0, "completed_at": 0, "output": None}
    assert whole | masked == found[-1]["response"] | masked
    assert [without_ids(item) for item in whole["output"]] == [without_ids(item) for item in done]
    assert server.call(key, "GET", f"/v1/responses/{whole['id']}") == whole


def without_ids(item):
    return {name: value for name, value in item.items() if name != "id"}


def test_a_stream_that_breaks_off_ends_with_a_failed_response(server, key):
    found = events(server, key, {"input": "error"})
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["error"]["code"] == "server_error"
    assert found[-1]["response"]["status"] == "failed"
    assert (
        server.request("GET", f"/v1/responses/{found[0]['response']['id']}", key).status_code == 404
    )


def test_a_chain_of_responses_is_one_run(server, client, key):
    first, run, root = run_of(client, "use tides", tools=[TIDES], instructions="be brief")
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "say high"}
    second, again, middle = run_of(client, [result], previous_response_id=first.id, tools=[TIDES])
    third, _, leaf = run_of(client, "say more", previous_response_id=second.id)
    other, _, branch = run_of(client, "say less", previous_response_id=second.id)
    assert run == again
    assert (second.output_text, third.output_text, other.output_text) == ("high", "more", "less")
    found = graph(server, key, run)
    assert sorted(map(tuple, found["edges"])) == sorted(
        [(root, middle), (middle, leaf), (middle, branch)]
    )
    function = {"name": "tides", "arguments": '{"input": "ok tides"}'}
    assert server.worker.bodies[-1]["messages"] == [
        {"role": "user", "content": "use tides"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "of_tides", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "of_tides", "content": "say high"},
        {"role": "assistant", "content": "high"},
        {"role": "user", "content": "say less"},
    ]


def test_a_chain_whose_run_is_closed_continues_in_a_new_run(server, client, key):
    closed = {"X-Interaction-Id": "closed", "X-Interaction-Final": "true"}
    first, run, _ = run_of(client, "say one", extra_headers=closed)
    second, other, _ = run_of(client, "say two", previous_response_id=first.id)
    assert run != other
    assert graph(server, key, other)["edges"] == []
    _, same, _ = run_of(client, "say three", previous_response_id=second.id)
    assert same == other


def test_a_response_that_is_not_stored_is_a_run_of_its_own(server, client, key):
    answer, run, _ = run_of(client, "say one", store=False)
    assert not answer.store
    assert server.call(key, "GET", f"/v1/interactions/{run}")["state"] == "complete"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "say two", previous_response_id=answer.id)
    assert caught.value.code == "previous_response_not_found"


def test_stored_responses_are_read_listed_and_deleted(client):
    items = [{"role": "user", "content": f"say {number}"} for number in range(3)]
    answer = client.responses.create(model="scripted", input=items, metadata={"trip": "sea"})
    read = client.responses.retrieve(answer.id)
    assert (read.output_text, read.metadata, read.status) == ("2", {"trip": "sea"}, "completed")
    page = client.responses.input_items.list(answer.id, limit=2)
    ResponseItemList.model_validate(page.model_dump() | {"object": "list"})
    assert [item.content[0].text for item in page.data] == ["say 2", "say 1"]
    assert [item.content[0].text for item in page] == ["say 2", "say 1", "say 0"]
    reference = {"type": "item_reference", "id": page.data[1].id}
    ask(client, [reference])
    client.responses.delete(answer.id)
    for gone in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            gone(answer.id)
    with pytest.raises(openai.BadRequestError, match=r"input\[0\].id"):
        ask(client, [reference])


def test_items_that_a_client_repeats_are_listed_once_each(client):
    """A page ends at an item's id: with equal ids the pages would have no end."""
    said = {"id": "same", "type": "message", "role": "user", "content": "say x"}
    answer = ask(client, [said] * 3)
    conversation = client.conversations.create(items=[said] * 2)
    client.conversations.items.create(conversation.id, items=[said])
    for pages in (
        client.responses.input_items.list(answer.id, limit=1, order="asc"),
        client.conversations.items.list(conversation.id, limit=1, order="asc"),
    ):
        ids = [item.id for item in itertools.islice(pages, 9)]
        assert (ids[0], len(ids), len(set(ids))) == ("same", 3, 3)


def test_a_conversation_is_one_run_that_its_responses_extend(server, client, key):
    conversation = client.conversations.create(
        items=[{"role": "user", "content": "say sea"}], metadata={"trip": "sea"}
    )
    assert conversation.metadata == {"trip": "sea"}
    place = {"conversation": conversation.id}
    first, run, root = run_of(client, "say one", user="ann", **place)
    second, again, child = run_of(client, "say two", store=False, **place)
    assert run == again
    assert graph(server, key, run)["edges"] == [[root, child]]
    run = conversation.id
    assert (first.conversation.id, second.conversation.id) == (run, run)
    sent = [message["content"] for message in server.worker.bodies[-1]["messages"]]
    assert sent == ["say sea", "say one", "one", "say two"]
    items = client.conversations.items.list(conversation.id, order="asc", limit=2)
    texts = [item.content[0].text for item in items]
    assert texts == [*sent, "two"]
    last = client.conversations.items.list(conversation.id).data[0]
    assert client.conversations.items.retrieve(last.id, conversation_id=run) == last
    client.conversations.items.delete(last.id, conversation_id=run)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(last.id, conversation_id=run)
    added = [{"role": "assistant", "content": "three"}]
    assert len(client.conversations.items.create(run, items=added).data) == 1
    client.conversations.update(run, metadata={"trip": "land"})
    assert client.conversations.retrieve(run).metadata == {"trip": "land"}
    assert client.conversations.update(run, metadata=None).metadata == {}
    with pytest.raises(openai.NotFoundError):
        ask(client, "say x", user="bob", **place)
    _, app = server.new_tenant_and_app("stranger")
    for method, path in (
        ("GET", ""),
        ("POST", ""),
        ("DELETE", ""),
        ("GET", "/items"),
        ("POST", "/items"),
        ("GET", f"/items/{last.id}"),
        ("DELETE", f"/items/{last.id}"),
    ):
        body = {"metadata": {}} if not path else {"items": added}
        body = body if method == "POST" else None
        answer = server.request(method, f"/v1/conversations/{run}{path}", app["api_key"], json=body)
        assert answer.status_code == 404, (method, path)
    assert client.conversations.delete(run).deleted
    with pytest.raises(openai.NotFoundError):
        ask(client, "say x", **place)


class Tide(BaseModel):
    height: int


def test_structured_output_is_parsed(server, client):
    found = client.responses.parse(model="scripted", input='say {"height": 3}', text_format=Tide)
    assert found.output_parsed == Tide(height=3)
    sent = server.worker.bodies[-1]["response_format"]
    assert (sent["type"], sent["json_schema"]["name"]) == ("json_schema", "Tide")


WRONG = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"truncation": "auto"}, "truncation"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"input": []}, "input"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        "input[0].content[0].type",
    ),
    ({"extra_body": {"n": 2}}, "n"),
    ({"max_output_tokens": 10**6}, "max_output_tokens"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"background": True, "store": False}, "background"),
    ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_what_cannot_be_honoured_names_its_field(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "scripted", "input": "say x"} | fields)
    assert caught.value.param == param
    if param == "text.verbosity":
        assert "the workers of 'scripted'" in caught.value.message


def test_a_response_in_the_background_is_followed_and_cancelled(server, client):
    begun = ask(client, "hold back", background=True)
    assert begun.status == "queued"
    with pytest.raises(openai.RateLimitError):
        ask(client, "say more", background=True)
    eventually(lambda: "back" in server.worker.holding, "it does not run")
    with pytest.raises(openai.BadRequestError, match="has no answer"):
        ask(client, "say more", previous_response_id=begun.id)
    server.worker.release()
    eventually(lambda: client.responses.retrieve(begun.id).status == "completed", "it does not end")
    assert client.responses.retrieve(begun.id).output_text == "one two three"
    with pytest.raises(openai.BadRequestError, match="has ended"):
        client.responses.cancel(begun.id)
    second = ask(client, "hold on", background=True)
    eventually(lambda: "on" in server.worker.holding, "it does not run")
    for _ in range(2):
        assert client.responses.cancel(second.id).status == "cancelled"
    assert client.responses.retrieve(second.id).status == "cancelled"
    eventually(lambda: server.worker.disconnects > 0, "the worker does not stop")
    third = ask(client, "error", background=True)
    eventually(lambda: client.responses.retrieve(third.id).status == "failed", "it does not end")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(ask(client, "say x").id)


def test_a_response_in_the_background_waits_while_control_accepts_nothing(
    server, client, monkeypatch
):
    headers, asked = {"Retry-After": "0.1"}, threading.Event()

    def require():
        asked.set()
        raise UnavailableError("no control process speaks", code="log_unavailable", headers=headers)

    with monkeypatch.context() as patch:
        patch.setattr(server.platform.control, "_require_lease", require)
        begun = ask(client, "say hello", background=True)
        for _ in range(2):
            asked.clear()
            assert asked.wait(DEADLINE_S)
        assert client.responses.retrieve(begun.id).status == "queued"
    eventually(lambda: client.responses.retrieve(begun.id).status == "completed", "it does not end")


def test_a_stream_in_the_background_begins_with_queued(server, key):
    found = events(server, key, {"input": "say hello", "background": True})
    kinds = [event["type"] for event in found]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"


def test_a_background_response_of_a_stopped_server_has_failed(server, client):
    answer = ask(client, "say x")
    with server.platform.sessions.begin() as session:
        where = StoredResponse.id == answer.id
        session.execute(update(StoredResponse).where(where).values(status="queued"))
    read = client.responses.retrieve(answer.id)
    assert read.status == "failed"
    assert "stopped" in read.error.message


def test_another_tenant_reads_and_continues_nothing(server, client):
    answer = ask(client, "say secret", background=False)
    _, app = server.new_tenant_and_app("other")
    with OpenAI(base_url=f"{server.url}/v1", api_key=app["api_key"], max_retries=0) as other:
        for read in (
            other.responses.retrieve,
            other.responses.delete,
            other.responses.cancel,
            lambda name: list(other.responses.input_items.list(name)),
        ):
            with pytest.raises(openai.NotFoundError):
                read(answer.id)
        with pytest.raises(openai.BadRequestError) as caught:
            ask(other, "say x", previous_response_id=answer.id)
        assert caught.value.code == "previous_response_not_found"
        with pytest.raises(openai.BadRequestError):
            ask(other, [{"type": "item_reference", "id": answer.output[0].id}])
    assert client.responses.retrieve(answer.id).output_text == "secret"


def deep(depth):
    """Return a value with this many levels."""
    value = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def test_an_item_that_is_nested_too_deeply_is_rejected_and_never_stored(server, key):
    text = {"type": "output_text", "text": "x", "logprobs": [deep(230)]}
    items = [{"role": "assistant", "content": [text]}, {"role": "user", "content": "say x"}]
    before = count(server)
    answer = server.request(
        "POST", "/v1/responses", key, json={"model": "scripted", "input": items}
    )
    assert answer.status_code == 400, answer.text
    assert "allowed: 200 levels" in answer.text
    assert count(server) == before
    answer = server.request("POST", "/v1/conversations", key, json={"items": items})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "items")
    conversation = server.call(key, "POST", "/v1/conversations", {})["id"]
    path = f"/v1/conversations/{conversation}/items"
    answer = server.request("POST", path, key, json={"items": items})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "items")
    assert server.call(key, "GET", path)["data"] == []


@pytest.mark.parametrize("stream", [False, True])
def test_events_in_the_background_are_not_kept_once_they_are_read(server, client, stream):
    begun = len(server.worker.holding)
    created = ask(client, "hold x", background=True, stream=stream)
    eventually(lambda: len(server.worker.holding) > begun)
    (running,) = server.app.state.responses._running.values()
    server.worker.release()
    if stream:
        assert list(created)[-1].type == "response.completed"
    eventually(lambda: running.task.done())
    assert client.responses.retrieve(running.key.id).output_text == "one two three"
    assert running.buffer.size_bytes > 0
    assert not running.buffer._parts


def test_a_response_that_ends_while_it_is_read_has_ended(server, client, monkeypatch):
    begun = len(server.worker.holding)
    created = ask(client, "hold x", background=True)
    eventually(lambda: len(server.worker.holding) > begun)
    service = server.app.state.responses
    (running,) = service._running.values()
    find = service._store.find

    async def find_before_the_end(key):
        row = await find(key)
        if not running.task.done():
            server.worker.release()
            await asyncio.wait({running.task})
        return row

    monkeypatch.setattr(service._store, "find", find_before_the_end)
    assert client.responses.retrieve(created.id).status == "completed"


def test_a_long_history_is_read_off_the_event_loop(server, client, monkeypatch):
    threads = []

    def read(messages):
        threads.append(threading.current_thread())
        return Conversation(messages)

    monkeypatch.setattr(check, "Conversation", read)
    ask(client, "say a")
    for text in ("x", "x" * 70_000):
        items = [{"role": "user", "content": each} for each in (text, "ok")]
        begun = ask(client, items, max_output_tokens=9)
        ask(client, "ok", previous_response_id=begun.id, max_output_tokens=9)
    loop = threads[0]
    assert [thread is loop for thread in threads] == [True, True, True, False, False]


@pytest.mark.parametrize("logprob", [b'"\\ud83d"', b"1" + b"0" * 30], ids=["half a pair", "large"])
def test_an_item_that_cannot_be_written_is_rejected(server, key, logprob):
    part = b'{"type":"output_text","text":"x","logprobs":[%s]}' % logprob
    body = b'{"items":[{"role":"assistant","content":[%s]}]}' % part
    conversation = server.call(key, "POST", "/v1/conversations", {})["id"]
    headers = {"Content-Type": "application/json"}
    for path in ("/v1/conversations", f"/v1/conversations/{conversation}/items"):
        answer = server.request("POST", path, key, content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "items")


def test_a_large_item_of_a_conversation_is_read_off_the_event_loop(server, key, monkeypatch):
    threads = []

    def read(*arguments):
        threads.append(threading.current_thread())
        return read_items(*arguments)

    monkeypatch.setattr(conversation_endpoints, "read_items", read)
    part = {"type": "input_text", "text": "x"}
    for parts in (1, 3_000):
        items = [{"role": "user", "content": [part] * parts}]
        path = f"/v1/conversations/{server.call(key, 'POST', '/v1/conversations', {})['id']}/items"
        for answer in (
            server.call(key, "POST", "/v1/conversations", {"items": items})["object"],
            server.call(key, "POST", path, {"items": items})["object"],
        ):
            assert answer in ("conversation", "list")
    loop = threads[0]
    assert [thread is loop for thread in threads] == [True, True, False, False]


def test_the_tool_calls_of_a_message_are_nested_as_deeply_as_can_be_written(server, key):
    use = {"type": "tool_use", "id": "a", "name": "tides", "input": deep(300)}
    messages = [{"role": "user", "content": "say x"}, {"role": "assistant", "content": [use]}]
    body = {"model": "scripted", "max_tokens": 9, "messages": messages}
    answer = server.request("POST", "/v1/messages", key, json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_an_item_counts_as_often_as_the_input_refers_to_it(server, client, owner):
    answer = ask(client, "say " + "x " * 500)
    item = next(iter(client.responses.input_items.list(answer.id)))
    references = [{"type": "item_reference", "id": item.id}] * 50
    store, sizes = server.platform.responses._store, []
    tenant, app = (each["id"] for each in owner)
    found = asyncio.run(store.resolved(tenant, app, references, sizes.append))
    assert [each["id"] for each in found] == [item.id] * 50
    assert sum(sizes) > 50 * 1_000


def count(server, table=StoredResponse, **where):
    query = select(func.count()).select_from(table).filter_by(**where)
    with server.platform.sessions() as session:
        return session.scalar(query)


def test_an_app_has_a_bounded_number_of_responses(server):
    _, app = server.new_tenant_and_app("many")
    body = {"model": "scripted", "input": "ok"}
    ids = [server.call(app["api_key"], "POST", "/v1/responses", body)["id"] for _ in range(31)]
    assert count(server, app_id=app["id"]) == 27
    statuses = [
        server.request("GET", f"/v1/responses/{name}", app["api_key"]).status_code for name in ids
    ]
    assert statuses == [404] * 4 + [200] * 27


def test_an_erasure_deletes_the_responses_of_a_user(server):
    tenant, app = server.new_tenant_and_app("erased")
    for user in ("ann", "bob"):
        body = {"model": "scripted", "input": f"say {user}", "user": user}
        server.call(app["api_key"], "POST", "/v1/responses", body)
    held = {"model": "scripted", "input": "hold ann", "user": "ann", "background": True}
    held = server.call(app["api_key"], "POST", "/v1/responses", held)
    eventually(lambda: "ann" in server.worker.holding, "it does not run")
    exported = server.call(tenant["api_key"], "GET", "/v1/user-data", user="ann")["responses"]
    assert "say ann" in json.dumps(exported)
    talk = server.call(app["api_key"], "POST", "/v1/conversations", {})["id"]
    body = {"model": "scripted", "input": "say talk", "user": "ann", "conversation": talk}
    server.call(app["api_key"], "POST", "/v1/responses", body)
    exported = server.call(tenant["api_key"], "GET", "/v1/user-data", user="ann")
    assert [item["item"]["role"] for item in exported["conversations"][0]["items"]] == [
        "user",
        "assistant",
    ]
    done = server.call(tenant["api_key"], "DELETE", "/v1/user-data", user="ann")
    assert (done["erased"]["responses"], done["erased"]["conversations"]) == (3, 1)
    server.worker.release()
    eventually(lambda: not server.platform.responses.running, "it does not end")
    assert count(server, tenant_id=tenant["id"], user_id="ann") == 0
    assert count(server, tenant_id=tenant["id"], user_id="bob") == 1
    assert count(server, ConversationItem, tenant_id=tenant["id"]) == 0


def test_a_response_of_a_user_who_was_erased_before_its_end_is_not_stored(server):
    tenant, app = server.new_tenant_and_app("late")

    async def work():
        headers = {"Authorization": f"Bearer {app['api_key']}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            body = {"model": "scripted", "input": "hold late", "user": "ann"}
            answering = asyncio.create_task(client.post("/v1/responses", json=body))
            holding = server.worker.holding
            await asyncio.to_thread(eventually, lambda: "late" in holding, "it does not run")
            headers = {"Authorization": f"Bearer {tenant['api_key']}"}
            erased = await client.delete("/v1/user-data", params={"user": "ann"}, headers=headers)
            assert erased.status_code == 200
            server.worker.release()
            return (await answering).json()

    assert asyncio.run(work())["store"] is False
    assert count(server, tenant_id=tenant["id"]) == 0


def test_old_responses_are_deleted(server):
    _, app = server.new_tenant_and_app("old")
    server.call(app["api_key"], "POST", "/v1/responses", {"model": "scripted", "input": "ok"})
    with server.platform.sessions.begin() as session:
        assert delete_before(session, utc_now()) > 0
    assert count(server, app_id=app["id"]) == 0


def test_a_server_without_a_store_stores_nothing(tmp_path):
    with WholeServer(tmp_path / "data", response_store=False) as server:
        _, app = server.new_tenant_and_app("plain")
        body = {"model": "scripted", "input": "ok"}
        answer = server.call(app["api_key"], "POST", "/v1/responses", body)
        assert not answer["store"]
        assert count(server) == 0
        answer = server.request(
            "POST", "/v1/responses", app["api_key"], json=body | {"store": True}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "store")


def test_the_agents_sdk_runs_a_tool_loop_as_one_run(server):
    key = server.new_tenant_and_app("sailors")[1]["api_key"]
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def tides(input: str) -> str:
        """Return the tides."""
        return "say high tide"

    async def work():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key) as client:
            model = agents.OpenAIResponsesModel(model="scripted", openai_client=client)
            agent = agents.Agent(name="sailor", model=model, tools=[tides])
            whole = await agents.Runner.run(agent, "use tides")
            streamed = agents.Runner.run_streamed(agent, "use tides")
            async for _ in streamed.stream_events():
                pass
            return whole.final_output, streamed.final_output

    assert asyncio.run(work()) == ("high tide", "high tide")
    assert server.platform.ledger.flush(10)
    runs = server.call(key, "GET", "/v1/interactions")["items"]
    assert sorted(run["calls"] for run in runs) == [2, 2]
