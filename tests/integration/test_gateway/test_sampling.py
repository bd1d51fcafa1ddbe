"""Sampling options, log probabilities and JSON mode work through the whole platform."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import openai
import pytest
from torch_worker import MODEL


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


def chat(client, content="Hello", **more):
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.create(
        **{"model": MODEL, "messages": messages, "max_tokens": 20, "seed": 4} | more
    )


def complete(client, **more):
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 20, "seed": 4}
    return client.completions.create(**body | more)


def test_log_probabilities_of_chat_survive_streaming_and_merging(client):
    body = {"logprobs": True, "top_logprobs": 2, "n": 2}
    whole = chat(client, **body)
    streamed = [[], []]
    for chunk in chat(client, **body, stream=True):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed[choice.index] += choice.logprobs.content
    for choice, content in zip(whole.choices, streamed, strict=True):
        reported = choice.logprobs.content
        assert "".join(each.token for each in reported) == choice.message.content
        assert [each.token for each in content] == [each.token for each in reported]
        assert all(len(each.top_logprobs) == 2 and each.bytes for each in reported)
    assert chat(client).choices[0].logprobs is None


def test_log_probabilities_of_completions_survive_streaming_and_merging(client):
    plain = complete(client).choices[0].text
    stop = plain[8:10]
    body = {"logprobs": 1, "stop": stop}
    whole = complete(client, **body).choices[0]
    reported = whole.logprobs
    # The tokens that the stop string cut off are reported as well.
    assert "".join(reported.tokens) == plain[: plain.index(stop) + 2] == whole.text + stop
    assert reported.text_offset == list(range(len(reported.tokens)))
    parts = [chunk.choices[0] for chunk in complete(client, **body, stream=True)]
    assert "".join(part.text for part in parts) == whole.text
    for name in ("tokens", "text_offset"):
        lists = [getattr(part.logprobs, name) for part in parts if part.logprobs is not None]
        assert list(chain.from_iterable(lists)) == getattr(reported, name)


def test_options_reach_the_worker(client):
    greedy = chat(client, temperature=0).choices[0].message.content
    for option in ({"extra_body": {"top_k": 1}}, {"top_p": 1e-9}, {"extra_body": {"min_p": 1}}):
        assert chat(client, temperature=2, **option).choices[0].message.content == greedy
    varied = chat(client, temperature=0, presence_penalty=2, frequency_penalty=1)
    assert len(set(varied.choices[0].message.content)) > len(set(greedy))
    ended = {"logit_bias": {"256": 100}}
    assert chat(client, **ended).usage.completion_tokens == 1
    longer = chat(client, **ended, extra_body={"min_tokens": 6})
    assert longer.usage.completion_tokens == 7


@pytest.mark.parametrize("stream", [False, True])
def test_json_mode_returns_json(client, stream):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    answer = chat(client, response_format=wanted, max_tokens=60, stream=stream)
    if stream:
        text = "".join(c.choices[0].delta.content or "" for c in answer if c.choices)
    else:
        text = answer.choices[0].message.content
    value = json.loads(text)
    assert value["ok"] in (True, False)
    assert value["n"] in (1, 2)


REFUSED = [
    # Rejected by the platform, before it waits for a worker.
    ({"temperature": 2.5}, "temperature", "2.5"),
    ({"top_k": -5}, "top_k", "-5"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
    # Rejected by the worker.
    ({"min_tokens": 21}, "min_tokens", "from 0 to 20"),
    ({"logit_bias": {"9999": 1}}, "logit_bias", "0 to 261"),
    ({"thinking_token_budget": 9}, "thinking_token_budget", "cannot honour"),
    ({"guided_json": {}}, "guided_json", "unknown"),
    ({"response_format": {"type": "grammar"}}, "response_format.type", "json_schema"),
]


@pytest.mark.parametrize(("change", "param", "message"), REFUSED)
def test_unsupported_options_are_rejected_by_name(server, change, param, message):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
    answer = server.post("/v1/chat/completions", body | change)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert message in error["message"]


def test_echo_is_rejected_by_name(server):
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2, "echo": True, "logprobs": 1}
    answer = server.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "echo")


# Schemas that cost the worker no more than one call may cost.
UNUSABLE = [
    ({"$ref": "#"}, "own schema"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "own schema"),
    (
        {"allOf": [{"type": "string", "pattern": f"a.{{{size}}}b"} for size in range(40)]},
        "processor time",
    ),
    ({"enum": ["x" * size for size in range(400)]}, "allowed: 65536"),
    ({"type": "string", "pattern": "(" * 400}, "regex"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("schema", "reason"), UNUSABLE)
def test_an_unusable_schema_is_a_bad_request_without_cost_for_others(
    client, server, schema, reason, stream
):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(chat, client)
        with pytest.raises(openai.BadRequestError) as caught:
            list(chat(client, response_format=form, stream=stream))
        assert len(other.result().choices[0].message.content) > 0
    assert caught.value.param.startswith("response_format")
    assert reason in caught.value.message
    assert server.http.get("/health/readiness").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_completed_is_a_bad_request(server, client, stream):
    properties = {f"property {number}": {"type": "string"} for number in range(600)}
    schema = {"type": "object", "properties": properties}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    run = f"cannot-be-completed-{stream}"
    more = {"response_format": form, "stream": stream, "extra_headers": {"X-Interaction-Id": run}}
    # A stream that has begun already has a status.
    with pytest.raises(openai.APIError if stream else openai.BadRequestError) as caught:
        list(chat(client, **more))
    assert caught.value.code == "schema_not_followed"
    assert "cannot be followed" in caught.value.message
    row = server.row(interaction_id=run)
    assert row["outcome"] == "failed"
    assert row["error"].startswith("the worker rejected the call (400): ")
    assert "cannot be followed" in row["error"]
    assert (row["output_tokens"] > 0) == stream, "the output before the rejection is charged"
    assert row["estimated"] == 0


def test_a_recursive_schema_is_honoured(client):
    tree = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
        "required": ["kids"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "tree", "schema": tree}}
    bias = {str(ord("]")): 20}
    answer = chat(client, response_format=form, logit_bias=bias, max_tokens=60)
    value = json.loads(answer.choices[0].message.content)
    assert isinstance(value["kids"], list)


@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_special_tokens": True},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_options_of_the_prompt_count_as_the_worker_makes_it(server, client, options):
    """The platform's count before the call is that of the worker, which the usage reports."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Tides are"}]
    body = {"model": MODEL, "messages": messages}
    answer = client.chat.completions.create(**body, max_tokens=1, extra_body=options)
    most = 1 << 30
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**body, max_tokens=most, extra_body=options)
    assert f"the prompt has {answer.usage.prompt_tokens})" in str(raised.value)


def test_an_answer_may_continue_the_last_message(client):
    """The whole conversation as a text has the same continuation."""
    start = {"role": "assistant", "content": "Tides are"}
    body = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    asked = {"role": "user", "content": "Hi"}
    only = {"add_generation_prompt": False, "continue_final_message": True}
    chat = client.chat.completions.create(**body, messages=[asked, start], extra_body=only)
    text = "<|user|>Hi<|end|><|assistant|>Tides are"
    same = client.completions.create(**body, prompt=text)
    assert chat.choices[0].message.content == same.choices[0].text
    with pytest.raises(openai.BadRequestError, match="needs add_generation_prompt to be false"):
        client.chat.completions.create(
            **body, messages=[asked, start], extra_body={"continue_final_message": True}
        )
