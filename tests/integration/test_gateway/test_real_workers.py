"""The server works with real workers, driven by the real openai client."""

import concurrent.futures

import openai
import pytest
from processes import eventually
from torch_worker import MODEL

PATH = "/v1/chat/completions"


def messages(text="Hello there", system="You are brief."):
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


@pytest.fixture(scope="module")
def generate():
    """Return a function for transformers' own greedy generation on the same checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from fairserve.engine.torch.builtin_model import ensure_builtin_model

    folder = ensure_builtin_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def run(chat, tokens):
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            out = model.generate(ids, max_new_tokens=tokens, do_sample=False)
        return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True), ids.shape[1]

    return run


def test_greedy_output_equals_transformers_in_both_modes(client, generate):
    for text in ("Hello there", "a b c " * 300):  # the second is tokenised in a thread
        expected, prompt_tokens = generate(messages(text), 24)
        asked = {
            "model": MODEL,
            "messages": messages(text),
            "max_tokens": 24,
            "temperature": 0,
        }
        whole = client.chat.completions.create(**asked)
        assert whole.choices[0].message.content == expected
        assert whole.usage.prompt_tokens == prompt_tokens
        assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (24, "length")
        parts = client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(parts)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == expected
        assert [c.usage is not None for c in chunks].count(True) == 1
        assert chunks[-1].usage.completion_tokens == 24
    # Each worker may have processed the prompt once; the third time it is cached.
    again = client.chat.completions.create(**asked)
    assert again.choices[0].message.content == expected
    assert again.usage.prompt_tokens_details.cached_tokens > 0.9 * prompt_tokens


def test_a_call_has_a_complete_row(server, client):
    headers = {"X-Interaction-Id": "run-row", "X-Call-Id": "first", "X-Agent": "writer"}
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=messages(),
        max_tokens=10,
        n=2,
        user="ann",
        metadata={"topic": "x"},
        extra_headers=headers,
    )
    assert raw.headers["x-interaction-id"] == "run-row"
    assert raw.headers["x-call-id"] == "first"
    assert raw.headers["x-fairserve-stage"] == "1"
    assert int(raw.headers["x-fairserve-queue-ms"]) >= 0
    usage = raw.parse().usage
    row = server.row(interaction_id="run-row")
    assert row["input_tokens"] + row["system_tokens"] == usage.prompt_tokens
    assert 0 < row["system_tokens"] < usage.prompt_tokens
    assert row["output_tokens"] == usage.completion_tokens == 20, "both samples are charged"
    assert row["service"] == usage.prompt_tokens + 2 * 20
    assert (row["outcome"], row["user_id"], row["agent"]) == ("completed", "ann", "writer")
    assert row["worker"] == raw.headers["x-fairserve-worker"]
    assert row["ttft_s"] is None, "it was not streamed"
    assert not row["wasted"]
    assert not row["estimated"]


def test_completions_and_models_are_served(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    whole = client.completions.create(model=MODEL, prompt="Once", max_tokens=8, temperature=0)
    chunks = client.completions.create(
        model=MODEL, prompt="Once", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_the_stages_of_a_run_follow_its_parents(client):
    stages = {}
    for name, parents in (("a", ""), ("b", "a"), ("c", "a"), ("d", "b,c")):
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=messages(),
            max_tokens=1,
            extra_headers={
                "X-Interaction-Id": "run-graph",
                "X-Call-Id": name,
                "X-Parent-Ids": parents,
            },
        )
        stages[name] = int(raw.headers["x-fairserve-stage"])
    assert stages == {"a": 1, "b": 2, "c": 2, "d": 3}


def test_the_same_run_id_of_another_app_is_another_run(server, client):
    other = server.openai(server.new_key("other"))
    for each in (client, other):
        raw = each.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=messages(),
            max_tokens=1,
            extra_headers={"X-Interaction-Id": "shared", "X-Call-Id": "same"},
        )
        assert raw.headers["x-fairserve-stage"] == "1"
    path = "/v1/interactions/shared"
    assert server.request("GET", path, server.app_key).json()["calls"] == 1
    server.request("POST", path + "/close", server.app_key)
    # For a moment it is neither in memory nor in the database.
    ended = eventually(
        lambda: (
            (run := server.request("GET", path, server.app_key)).status_code == 200 and run.json()
        )
    )
    assert (ended["state"], ended["calls"]) == ("complete", 1)
    assert server.request("GET", path, other.api_key).json()["state"] == "under_way"


def test_a_disconnect_cancels_the_call_and_its_usage_is_recorded(server, client):
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages(),
        max_tokens=4000,
        stream=True,
        extra_headers={"X-Interaction-Id": "run-left"},
    )
    for _ in range(5):
        next(stream)
    stream.close()
    row = server.row(interaction_id="run-left")
    assert (row["outcome"], row["wasted"]) == ("cancelled", 1)
    assert 0 < row["output_tokens"] < 4000
    eventually(lambda: server.cluster()["running_calls"] == 0)


def test_a_disconnect_cancels_an_unstreamed_call(server):
    body = {"model": MODEL, "messages": messages(), "max_tokens": 8000}
    with server.asking(PATH, body, **{"X-Interaction-Id": "run-left-2"}):
        eventually(lambda: has_worker(server, "run-left-2"))
    row = server.row(interaction_id="run-left-2")
    assert (row["outcome"], row["charged"]) == ("cancelled", 1)


def has_worker(server, run):
    """Return whether a call of the run is assigned to a worker."""
    graph = server.request("GET", f"/v1/interactions/{run}/graph", server.app_key)
    return graph.is_success and any(n["state"] == "running" for n in graph.json()["nodes"])


def test_a_run_is_cancelled_with_its_running_call(server, client):
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages(),
        max_tokens=8000,
        stream=True,
        extra_headers={"X-Interaction-Id": "run-cancelled"},
    )
    next(stream)
    answer = server.request("DELETE", "/v1/interactions/run-cancelled", server.app_key)
    assert answer.json()["cancelled"]
    with pytest.raises(openai.APIError, match="cancelled"):
        list(stream)
    assert server.row(interaction_id="run-cancelled")["outcome"] == "cancelled"
    path = "/v1/interactions/run-cancelled"
    ended = eventually(
        lambda: (run := server.request("GET", path, server.app_key).json()).get("ended_at") and run
    )
    assert (ended["state"], ended["waste_cause"]) == ("cancelled", "cancelled")
    assert ended["wasted_tokens"] > 0


def test_an_idempotent_call_is_served_once(server, client):
    def call(stream):
        headers = {"Idempotency-Key": f"key-{stream}", "X-Interaction-Id": f"run-key-{stream}"}
        body = {"model": MODEL, "messages": messages(), "max_tokens": 60, "stream": stream}
        return server.post("/v1/chat/completions", body, headers=headers)

    for stream in (False, True):
        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            answers = list(threads.map(call, [stream] * 3))
        answers.append(call(stream))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1, "the same answer, byte for byte"
        replayed = [answer.headers.get("x-fairserve-replayed") for answer in answers]
        assert replayed.count(None) == 1
        assert server.row(interaction_id=f"run-key-{stream}")["outcome"] == "completed"
    headers = {"Idempotency-Key": "key-True"}
    other = server.post("/v1/chat/completions", {"model": MODEL, "messages": messages("x")},
                        headers=headers)  # fmt: skip
    assert (other.status_code, other.json()["error"]["param"]) == (422, "Idempotency-Key")


def test_an_idempotent_call_survives_its_connection(server):
    headers = {"Idempotency-Key": "survivor", "X-Interaction-Id": "run-survivor"}
    body = {"model": MODEL, "messages": messages(), "max_tokens": 300}
    with server.asking(PATH, body, **headers):
        eventually(lambda: has_worker(server, "run-survivor"))
    answer = server.post(PATH, body, headers=headers)
    assert answer.json()["usage"]["completion_tokens"] == 300
    assert server.row(interaction_id="run-survivor")["outcome"] == "completed"


BAD_BODIES = [
    ({"messages": []}, 400, "messages", None),
    ({"messages": "x"}, 400, "messages", None),
    ({"messages": [{"content": "a"}]}, 400, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", None),
    ({"messages": [{"role": "pirate", "content": "a"}]}, 400, "messages", None),
    ({"max_tokens": -1}, 400, "max_tokens", None),
    ({"max_tokens": 10**8}, 400, "max_tokens", "context_length_exceeded"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, 400, "max_tokens", None),
    ({"messages": messages("a" * 20_000)}, 400, "messages", "context_length_exceeded"),
    ({"model": "gpt-5"}, 404, "model", "model_not_found"),
    ({"temperature": "hot"}, 400, "temperature", None),
    ({"n": 0}, 400, "n", None),
    ({"stop": [""]}, 400, "stop[0]", None),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", None),
    ({"stream": True, "stream_options": {"x": 1}}, 400, "stream_options.x", "unknown_parameter"),
    (
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        400,
        "tools",
        "unsupported_parameter",
    ),
    ({"vllm_xargs": {"client_id": "x"}}, 400, "vllm_xargs", None),
    ({"metadata": {"interaction_id": ""}}, 400, "metadata.interaction_id", None),
    ({"user": "u" * 201}, 400, "user", None),
]


@pytest.mark.parametrize(("change", "status", "param", "code"), BAD_BODIES)
def test_body_errors_name_the_field(server, change, status, param, code):
    body = {"model": MODEL, "messages": messages(), "max_tokens": 2, **change}
    answer = server.post("/v1/chat/completions", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert error["code"] == (code or "invalid_value")
    assert error["type"]


def test_all_request_errors_have_one_format(server):
    path = "/v1/chat/completions"
    app = {"Authorization": f"Bearer {server.app_key}"}
    big = server.http.post(path, content=b"x" * (9 << 20), headers=app)
    chunked = server.http.post(path, content=iter([b"x" * (1 << 20)] * 9), headers=app)
    answers = {
        "json": (server.http.post(path, content=b'{"model"', headers=app), 400),
        "list": (server.http.post(path, content=b"[]", headers=app), 400),
        "big": (big, 413),
        "chunked": (chunked, 413),
        "no key": (server.http.post(path, json={}), 401),
        "wrong key": (server.post(path, {}, key="sk-fs-nothing"), 401),
        "tenant's key": (server.post(path, {}, key=server.tenant_key), 403),
        "no path": (server.http.get("/v1/nothing"), 404),
        "no method": (server.http.get(path), 405),
        "unknown run": (server.request("GET", "/v1/interactions/none", server.app_key), 404),
        "unknown field": (server.post("/v1/interactions", {"colour": 1}), 400),
    }
    for name, (answer, status) in answers.items():
        assert answer.status_code == status, (name, answer.text)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, name


def test_a_call_that_does_not_fit_its_run_is_rejected(server):
    run = {"X-Interaction-Id": "run-misfit"}
    body = {"model": MODEL, "messages": messages(), "max_tokens": 1}

    def call(headers, **change):
        answer = server.post("/v1/chat/completions", {**body, **change}, headers={**run, **headers})
        error = answer.json().get("error") or {}
        return answer.status_code, error.get("code")

    assert call({"X-Call-Id": "a"})[0] == 200
    assert call({"X-Call-Id": "a"}) == (409, "duplicate_call")
    assert call({"X-Call-Id": "b", "X-Parent-Ids": "nope"}) == (422, "unknown_parent")
    assert call({"X-Call-Id": "b", "X-Parent-Ids": "b"}) == (409, "call_cycle")
    assert call({"X-Call-Id": "b"}, user="somebody else") == (404, "interaction_not_found")
    assert call({"X-Call-Id": "b", "X-Interaction-Final": "true"})[0] == 200
    assert call({"X-Call-Id": "c"}) == (409, "interaction_closed")


def test_usage_is_reported(server):
    def completed():
        """Return the sums once a rollup has seen a completed call: refused ones may come first."""
        sums = server.request("GET", "/v1/usage", server.app_key).json()["sums"]
        return sums if sums["completed"] else None

    assert eventually(completed)["output_tokens"] > 0
