"""Sampling options, log probabilities and JSON mode of a real worker work with the openai client."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import openai
import pytest
from torch_worker import MODEL, shared_worker


@pytest.fixture(scope="module")
def worker():
    return shared_worker()


def chat(worker, content="Hello", **more):
    messages = [{"role": "user", "content": content}]
    return worker.openai.chat.completions.create(
        **{"model": MODEL, "messages": messages, "max_tokens": 24} | more
    )


def complete(worker, prompt="Hello", **more):
    return worker.openai.completions.create(
        **{"model": MODEL, "prompt": prompt, "max_tokens": 24} | more
    )


def text(answer):
    return answer.choices[0].message.content


def test_each_option_changes_the_output_and_a_seed_repeats_it(worker):
    base = {"seed": 3, "temperature": 1.5}
    options = [
        {"top_p": 0.3},
        {"presence_penalty": 2},
        {"frequency_penalty": -2},
        {"logit_bias": {"32": -100}},
        {"extra_body": {"top_k": 3}},
        {"extra_body": {"min_p": 0.4}},
    ]
    plain = text(chat(worker, **base))

    def both(option):
        return [text(chat(worker, **base | option)) for _ in range(2)]

    # All at once: each call runs beside others.
    with ThreadPoolExecutor(6) as pool:
        for option, (once, again) in zip(options, pool.map(both, options), strict=True):
            assert once == again != plain, option
    assert " " not in text(chat(worker, **base, logit_bias={"32": -100}))
    greedy = text(chat(worker, temperature=0))
    assert text(chat(worker, temperature=2, extra_body={"top_k": 1})) == greedy


def test_min_tokens_are_generated(worker):
    body = {"seed": 1, "logit_bias": {"256": 100}}
    assert text(chat(worker, **body)) == ""
    whole = chat(worker, **body, extra_body={"min_tokens": 9})
    assert (len(text(whole)), whole.choices[0].finish_reason) == (9, "stop")
    # Without max_tokens the output may be as long as min_tokens requires.
    body = {"model": MODEL, "prompt": "x", "min_tokens": 30, "logit_bias": {"256": 100}}
    usage = worker.http.post("/v1/completions", json=body).json()["usage"]
    assert usage["completion_tokens"] == 30


def test_logprobs_of_chat_streamed_and_whole(worker):
    body = {"seed": 5, "logprobs": True, "top_logprobs": 3, "n": 2}
    whole = chat(worker, **body)
    streamed = [[], []]
    for chunk in chat(worker, **body, stream=True):
        (choice,) = chunk.choices
        if choice.logprobs is not None:
            streamed[choice.index] += choice.logprobs.content
    for choice, content in zip(whole.choices, streamed, strict=True):
        reported = choice.logprobs.content
        assert len(reported) == 24
        assert b"".join(bytes(each.bytes) for each in reported).decode() == choice.message.content
        assert "".join(each.token for each in reported) == choice.message.content
        for each in reported:
            values = [top.logprob for top in each.top_logprobs]
            assert len(values) == 3
            assert values == sorted(values, reverse=True)
            assert each.logprob <= values[0] <= 0
        assert [each.token for each in content] == [each.token for each in reported]
        for one, other in zip(content, reported, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert chat(worker, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(worker).choices[0].logprobs is None


def test_logprobs_of_a_greedy_token_are_the_largest(worker):
    reported = (
        chat(worker, temperature=0, logprobs=True, top_logprobs=1).choices[0].logprobs.content
    )
    assert [each.token for each in reported] == [each.top_logprobs[0].token for each in reported]
    assert [each.logprob for each in reported] == [
        each.top_logprobs[0].logprob for each in reported
    ]


def test_logprobs_of_completions_streamed_and_whole(worker):
    body = {"seed": 5, "logprobs": 2}
    choice = complete(worker, **body).choices[0]
    reported = choice.logprobs
    assert reported.tokens == list(choice.text)
    assert reported.text_offset == list(range(24))
    for token, logprob, top in zip(
        reported.tokens, reported.token_logprobs, reported.top_logprobs, strict=True
    ):
        assert top[token] == logprob
        assert len(top) in (2, 3)
    chunks = [each.choices[0] for each in complete(worker, **body, stream=True)]
    parts = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    for name in ("tokens", "text_offset"):
        joined = chain.from_iterable(getattr(part, name) for part in parts)
        assert list(joined) == getattr(reported, name)
    assert [len(top) for top in complete(worker, logprobs=0).choices[0].logprobs.top_logprobs] == [
        1
    ] * 24
    assert complete(worker).choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_a_stop_string_cut_off_have_logprobs(worker, stream):
    plain = complete(worker, seed=7).choices[0].text
    stop = plain[10:13]
    at = plain.index(stop)
    answer = complete(worker, seed=7, stop=stop, logprobs=0, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == plain[:at]
    reported = [choice.logprobs for choice in choices if choice.logprobs is not None]
    tokens = list(chain.from_iterable(each.tokens for each in reported))
    offsets = list(chain.from_iterable(each.text_offset for each in reported))
    assert "".join(tokens) == plain[: at + len(stop)]
    assert offsets == list(range(at + len(stop)))


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
        "size": {"type": "integer", "minimum": -9, "maximum": 99},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}


def test_json_mode_returns_json(worker):
    schema = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
    plain = text(chat(worker, seed=2))
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(chat, worker, seed=seed, max_tokens=200, response_format=schema)
            for seed in range(3)
        ]
        free = pool.submit(chat, worker, seed=2)
        for call in calls:
            (choice,) = call.result().choices
            value = json.loads(choice.message.content)
            assert set(value) == set(SCHEMA["required"])
            assert len(value["name"]) <= 8
            assert value["size"] in range(-9, 100)
            assert set(value["tags"]) <= {"a", "bc"}
            assert choice.finish_reason == "stop"
        assert text(free.result()) == plain
    cut = chat(worker, response_format={"type": "json_object"}, max_tokens=1).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("{", "length")
    body = {"model": MODEL, "prompt": "x", "max_tokens": 99, "response_format": schema}
    answer = worker.http.post("/v1/completions", json=body).json()
    assert set(json.loads(answer["choices"][0]["text"])) == set(SCHEMA["required"])


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"temperature": -0.5}, "temperature", "-0.5"),
        ({"temperature": 3}, "temperature", "from 0 to 2"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"min_p": 2}, "min_p", "from 0 to 1"),
        ({"presence_penalty": -2.5}, "presence_penalty", "-2.5"),
        ({"frequency_penalty": 9}, "frequency_penalty", "from -2 to 2"),
        ({"logit_bias": {"262": 1}}, "logit_bias", "0 to 261"),
        ({"stop_token_ids": [262]}, "stop_token_ids", "0 to 261"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "0 to 261"),
        ({"min_tokens": 25}, "min_tokens", "from 0 to 24"),
        ({"min_tokens": 20000, "max_tokens": None}, "messages", "context"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs is true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21"),
        ({"repetition_penalty": 11}, "repetition_penalty", "from 0.01 to 10"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format",
            "is rejected",
        ),
    ],
)
def test_invalid_options_are_rejected(worker, body, param, message):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 24} | body
    answer = worker.http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert param in error["message"] or message in error["message"]
    assert message in error["message"]


def test_echo_is_rejected(worker):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(worker, echo=True, logprobs=1)
    assert caught.value.param == "echo"


@pytest.mark.parametrize("body", [b'{"temperature": NaN}', b'{"temperature": 1e999}'])
def test_non_finite_numbers_are_rejected(worker, body):
    assert worker.http.post("/v1/completions", content=body).status_code == 400
