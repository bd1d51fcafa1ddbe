"""Files and batches with OpenAI's own client, in front of the real engine and of a scripted worker."""

import json

import openai
import pytest
from constants import defaults
from openai.types import Batch, FileObject
from processes import eventually
from torch_worker import MODEL

from fairserve.platform.serving import options

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def lines(*bodies, endpoint=CHAT):
    """Return a file whose lines have the ids ``line-0``, ``line-1``, ..."""
    calls = [
        {"custom_id": f"line-{number}", "method": "POST", "url": endpoint, "body": body}
        for number, body in enumerate(bodies)
    ]
    return "\n".join(map(json.dumps, calls)).encode()


def chat(text, model="scripted", **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def upload(client, content, name="calls.jsonl", **more):
    return client.files.create(file=(name, content), purpose="batch", **more)


def create(client, content, endpoint=CHAT, **more):
    file = upload(client, content)
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
    )


def ended(client, batch_id):
    def probe():
        batch = client.batches.retrieve(batch_id)
        return batch if batch.status in ENDED else None

    return eventually(probe, lambda: client.batches.retrieve(batch_id).to_json())


def results(client, file_id):
    """Return the lines of a result file by their ids."""
    content = client.files.content(file_id).read()
    found = [json.loads(line) for line in content.splitlines()]
    assert all(each["id"].startswith("batch_req_") for each in found)
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found), "an id has two results"
    return by_id


def test_openais_client_runs_a_batch_on_the_engine(server):
    client = server.openai()
    file = upload(
        client,
        lines(
            chat("one", MODEL, max_tokens=3),
            chat("two", MODEL, max_tokens=3, user="someone"),
            chat("three", MODEL, temperature=9),
            chat("four", "no-such-model"),
            chat("five", MODEL, max_tokens=3, metadata={"interaction_id": "named-run"}),
        ),
    )
    assert FileObject.model_validate(file.model_dump(), strict=True)
    assert (file.purpose, file.status, file.filename) == ("batch", "processed", "calls.jsonl")
    assert client.files.retrieve(file.id) == file
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        metadata={"job": "nightly"},
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert batch.metadata == {"job": "nightly"}
    batch = ended(client, batch.id)
    Batch.model_validate(batch.model_dump(), strict=True)
    assert batch.status == "completed", batch
    assert batch.request_counts.to_dict() == {"total": 5, "completed": 3, "failed": 2}
    answers = results(client, batch.output_file_id)
    assert list(answers) == ["line-0", "line-1", "line-4"]
    for answer in answers.values():
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        body = openai.types.chat.ChatCompletion.model_validate(answer["response"]["body"])
        assert body.usage.completion_tokens == 3
        row = server.row(call_id=answer["response"]["request_id"])
        assert row["outcome"] == "completed"
    assert server.row(user_id="someone")["output_tokens"] == 3
    run = server.request("GET", "/v1/interactions/named-run", server.app_key).json()
    assert run["calls"] == 1
    errors = results(client, batch.error_file_id)
    assert [each["response"]["status_code"] for each in errors.values()] == [400, 404]
    assert errors["line-2"]["response"]["body"]["error"]["param"] == "temperature"
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output"
    assert output.expires_at - output.created_at == 7200
    assert output.bytes == len(client.files.content(output.id).read())
    eventually(lambda: not server.rows("batch_results", batch_id=batch.id))
    client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def test_text_completions(server):
    client = server.openai()
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 2}
    batch = ended(
        client, create(client, lines(body, endpoint="/v1/completions"), "/v1/completions").id
    )
    (answer,) = results(client, batch.output_file_id).values()
    openai.types.Completion.model_validate(answer["response"]["body"])
    assert batch.error_file_id is None


def test_lists_have_pages(server):
    client = server.openai(server.new_key("with-pages"))
    files = [upload(client, lines(chat(str(number)))) for number in range(5)]
    newest = [each.id for each in files][::-1]
    assert [each.id for each in client.files.list(limit=2)] == newest, "the client reads all pages"
    assert [each.id for each in client.files.list(order="asc", limit=3)] == newest[::-1]
    assert client.files.list(limit=2).data[-1].id == newest[1]
    assert not list(client.files.list(purpose="batch_output"))
    batches = [
        client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="1h").id
        for file in files
    ]
    assert [each.id for each in client.batches.list(limit=2)] == batches[::-1]
    with pytest.raises(openai.BadRequestError, match="after: there is no such batch"):
        client.batches.list(after="batch_unknown")


def test_a_page_after_a_deleted_file_is_an_error_and_not_the_end(server):
    client = server.openai(server.new_key("cleaner"))
    for number in range(3):
        upload(client, lines(chat(str(number))))

    def clean(**page):
        for file in client.files.list(**page):
            client.files.delete(file.id)

    with pytest.raises(openai.BadRequestError, match="after: there is no such file"):
        clean(limit=2)
    clean()
    assert not client.files.list().data


BAD_FILES = {
    "invalid_json_line": b'{"custom_id": ',
    "missing_required_parameter": lines(chat("x")).replace(b"line-0", b""),
    "invalid_method": lines(chat("x")).replace(b"POST", b"GET"),
    "invalid_url": lines(chat("x"), endpoint="/v1/completions"),
    "unknown_parameter": lines(chat("x")).replace(b'"method"', b'"mode": 1, "method"'),
    "unsupported_parameter": lines(chat("x", stream=True)),
    "duplicate_custom_id": lines(chat("x")),
}


@pytest.mark.parametrize("code", BAD_FILES)
def test_a_file_with_a_wrong_line_fails_and_names_it(server, code):
    client = server.openai(server.new_key(f"bad-{code}"))
    batch = ended(client, create(client, lines(chat("fine")) + b"\n\n" + BAD_FILES[code]).id)
    assert batch.status == "failed"
    assert batch.failed_at
    (error,) = batch.errors.data
    assert (error.code, error.line) == (code, 3)
    assert (batch.output_file_id, batch.request_counts.total) == (None, 0)


def test_what_cannot_be_a_batch_is_rejected(server):
    client = server.openai()
    file = upload(client, lines(chat("x")))
    for change, param in (
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"input_file_id": "file_unknown"}, "input_file_id"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "169h"}, "completion_window"),
        ({"metadata": {"x": "y" * 513}}, "metadata.x"),
        ({"extra_body": {"surprise": 1}}, "surprise"),
    ):
        query = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **change}
        with pytest.raises(openai.BadRequestError) as raised:
            client.batches.create(**query)
        assert raised.value.param == param, change


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"files": {"file": b"x"}}, "purpose"),
        ({"files": {"file": b"x"}, "data": {"purpose": "fine-tune"}}, "purpose"),
        ({"files": {"file": b""}, "data": {"purpose": "batch"}}, "file"),
        ({"files": {"other": b"x"}, "data": {"purpose": "batch"}}, "file"),
        ({"files": {"file": b"x"}, "data": {"purpose": "batch", "more": "1"}}, "more"),
        ({"data": {"purpose": "batch"}}, "file"),
        ({"json": {"purpose": "batch"}}, "file"),
        (
            {"files": {"file": b"x"}, "data": {"purpose": "batch", "expires_after[seconds]": "1"}},
            "expires_after[seconds]",
        ),
    ],
)
def test_an_upload_that_is_wrong_leaves_nothing(server, form, param):
    before = len(server.rows("files"))
    answer = server.request("POST", "/v1/files", server.app_key, **form)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert len(server.rows("files")) == before
    assert len(server.rows("file_parts")) == len(
        {row["file_id"] for row in server.rows("file_parts")}
    ), "every small file has one part"


def test_another_app_finds_nothing(server):
    client, other = server.openai(), server.openai(server.new_key("stranger"))
    batch = create(client, lines(chat("x")))
    for request in (
        lambda: other.files.retrieve(batch.input_file_id),
        lambda: other.files.content(batch.input_file_id),
        lambda: other.files.delete(batch.input_file_id),
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            request()
    with pytest.raises(openai.BadRequestError):
        other.batches.create(
            input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
        )
    assert not list(other.files.list())
    assert not list(other.batches.list())


# --- in front of a scripted worker ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def held(start_server, scripted):
    """Return a server whose app may have few small files and batches."""
    with (
        defaults(options, "FileOptions", max_per_tenant=30),
        defaults(options, "BatchOptions", max_unfinished_per_app=2),
        defaults(options, "BatchExecutionOptions", max_lines=100, max_line_bytes=2000),
    ):
        return start_server(
            *("--worker-urls", scripted[0].url, "--file-max-bytes", "20000"),
            *("--file-max-bytes-in-all", "1600000", "--batch-parallel-calls", "4"),
        )


def test_a_cancelled_batch_stops_its_calls_and_lists_every_line(held, scripted):
    client = held.openai(held.new_key("cancels"))
    texts = ["say early", *(f"hold {number}" for number in range(20))]
    batch = create(client, lines(*(chat(text, max_tokens=50) for text in texts)))
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed == 1)
    eventually(lambda: len(scripted[0].holding) == 4)
    assert client.batches.retrieve(batch.id).status == "in_progress"
    with pytest.raises(openai.ConflictError):
        client.files.delete(batch.input_file_id)
    disconnects = scripted[0].disconnects
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch.id)
    assert (batch.status, batch.request_counts.completed) == ("cancelled", 1)
    assert list(results(client, batch.output_file_id)) == ["line-0"]
    errors = results(client, batch.error_file_id)
    assert errors.keys() == {f"line-{number}" for number in range(1, 21)}
    assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
    assert batch.request_counts.to_dict() == {"total": 21, "completed": 1, "failed": 20}
    eventually(lambda: scripted[0].disconnects == disconnects + 4)
    assert batch.cancelling_at <= batch.cancelled_at
    assert client.batches.cancel(batch.id).status == "cancelled", "again changes nothing"


def test_a_call_of_a_client_is_served_beside_a_waiting_batch(held, scripted):
    client = held.openai(held.new_key("beside"))
    batch = create(client, lines(*(chat(f"hold b{n}", max_tokens=50) for n in range(30))))
    eventually(lambda: len(scripted[0].holding) >= 4)
    answer = client.chat.completions.create(**chat("say at once"))
    assert answer.choices[0].message.content == "at once"
    models = held.cluster()["models"]
    assert [each["queued_calls"] for each in models] == [0]
    client.batches.cancel(batch.id)
    ended(client, batch.id)


def test_a_line_that_continues_a_conversation_is_a_run_of_its_own(held):
    client = held.openai(held.new_key("turns"))
    first = chat("say turn")
    ended(client, create(client, lines(first)).id)
    earlier = [*first["messages"], {"role": "assistant", "content": "turn"}]
    second = chat("say more")
    second["messages"] = [*earlier, *second["messages"]]
    ended(client, create(client, lines(second)).id)

    def calls():
        runs = held.request("GET", "/v1/interactions", client.api_key).json()["items"]
        return [run["calls"] for run in runs]

    eventually(lambda: sum(calls()) == 2, calls)
    assert calls() == [1, 1]


def test_failures_of_workers_are_results(held):
    client = held.openai(held.new_key("failures"))
    batch = ended(client, create(client, lines(chat("poison"), chat("refuse"), chat("say ok"))).id)
    assert batch.status == "completed"
    errors = results(client, batch.error_file_id)
    assert [each["response"]["status_code"] for each in errors.values()] == [502, 400]
    assert errors["line-1"]["response"]["body"]["error"]["param"] == "tools"


def test_a_spent_quota_makes_the_batch_wait_with_few_rejections(held):
    """Two calls a minute: the batch tries again when a slot is free, one call at a time."""
    key = held.new_key("limited")
    app = next(each for each in held.rows("apps") if each["name"] == "limited")
    limits = {"contract": {"rpm_limit": 2}}
    answer = held.admin("PATCH", f"/v1/apps/{app['id']}?tenant={app['tenant_id']}", json=limits)
    assert answer.status_code == 200, answer.text
    client = held.openai(key)
    batch = create(client, lines(*(chat(f"say {number}") for number in range(8))))
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed == 2)
    rejected = eventually(lambda: held.rows(app_id=app["id"], outcome="refused"))
    assert len(rejected) <= 4, "the calls in flight at that time"
    assert client.batches.retrieve(batch.id).status == "in_progress"
    client.batches.cancel(batch.id)
    ended(client, batch.id)


def test_bounds_of_files_and_batches(held):
    client = held.openai(held.new_key("bounded"))
    with pytest.raises(openai.APIStatusError) as raised:
        upload(client, b"x" * 20_001)
    assert raised.value.status_code == 413
    with pytest.raises(openai.APIStatusError) as raised:
        upload(client, b"x" * 200_000)
    assert raised.value.status_code == 413
    batch = ended(client, create(client, lines(*[chat("x")] * 101)).id)
    assert batch.errors.data[0].code == "too_many_tasks"
    batch = ended(client, create(client, lines(chat("x"), chat("y" * 2000))).id)
    assert (batch.errors.data[0].code, batch.errors.data[0].line) == ("line_too_long", 2)
    waiting = [create(client, lines(chat("hold on"))).id for _ in range(2)]
    with pytest.raises(openai.RateLimitError) as raised:
        create(client, lines(chat("x")))
    assert raised.value.code == "too_many_batches"
    for batch_id in waiting:
        client.batches.cancel(batch_id)
        ended(client, batch_id)

    def fill():
        for _ in range(6):
            upload(client, b"x" * 19_000)

    with pytest.raises(openai.RateLimitError, match="would have") as raised:
        fill()
    assert raised.value.code == "file_space_full"


def test_the_batches_of_a_deleted_app_end(held, scripted):
    key = held.new_key("deleted")
    client = held.openai(key)
    app = next(each for each in held.rows("apps") if each["name"] == "deleted")
    batch = create(client, lines(chat("hold deleted")))
    eventually(lambda: any("deleted" in text for text in scripted[0].holding))
    answer = held.request("DELETE", f"/v1/apps/{app['id']}", held.tenant_key)
    assert answer.status_code == 200
    eventually(lambda: held.rows("batches", id=batch.id)[0]["state"] == "cancelled")
