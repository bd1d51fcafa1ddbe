"""Every field of a body is honoured, neutral, or refused by name."""

import pytest

from fairserve.engine.torch.openai_request import RequestError, parse

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def test_everything_that_is_honoured():
    request = parse(
        "chat",
        CHAT
        | {
            "n": 2,
            "max_tokens": 5,
            "max_completion_tokens": 6,
            "temperature": 0,
            "top_p": 0.5,
            "seed": -1,
            "stop": "x",
            "stop_token_ids": [3],
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "cache_salt": "s",
            "user": "u",
            "vllm_xargs": {"client_id": "c", "call_id": "k", "weight": 2},
        },
    )
    assert (request.samples, request.max_tokens, request.temperature) == (2, 6, 0)
    assert (request.top_p, request.seed, request.stop) == (0.5, -1, ("x",))
    assert (request.stop_token_ids, request.ignore_eos) == (frozenset([3]), True)
    assert (request.stream, request.include_usage, request.continuous_usage) == (True, True, True)
    assert (request.cache_salt, request.client_id, request.call_id) == ("s", "c", "k")
    assert request.weight == 2


def test_defaults():
    request = parse("completion", TEXT)
    assert (request.samples, request.max_tokens, request.temperature) == (1, None, 1.0)
    assert (request.client_id, request.weight, request.cache_salt) == ("default", 1.0, "")
    assert parse("completion", TEXT | {"user": "u"}).client_id == "u"
    assert parse("completion", TEXT | {"prompt": [1, 2]}).prompt == [1, 2]


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = parse("chat", CHAT | {"messages": [{"role": "user", "content": parts}]})
    assert request.messages == [{"role": "user", "content": "a\nb"}]


@pytest.mark.parametrize(
    "neutral",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "none", "parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"logprobs": False, "top_logprobs": None, "logit_bias": {}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
    ],
)
def test_fields_that_ask_for_nothing(neutral):
    parse("chat", CHAT | neutral)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"top_k": 5}, "top_k"),
        ({"nonsense": 1}, "nonsense"),
        ({"nonsense": None}, "nonsense"),
        ({"prompt": "x"}, "prompt"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]},
            "messages[0].tool_calls",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": "x"}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
        ),
        ({"vllm_xargs": {"weight": 0}}, "vllm_xargs.weight"),
        ({"vllm_xargs": {"client_id": 5}}, "vllm_xargs.client_id"),
        ({"vllm_xargs": {"other": 5}}, "vllm_xargs.other"),
        ({"cache_salt": 5}, "cache_salt"),
    ],
)
def test_fields_that_are_refused_by_name(extra, param):
    with pytest.raises(RequestError) as caught:
        parse("chat", CHAT | extra)
    assert caught.value.param == param
    assert param.split(".")[-1] in caught.value.message


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [[1, 2]], [1, True], 5])
def test_prompts_that_are_refused(prompt):
    with pytest.raises(RequestError, match="prompt"):
        parse("completion", TEXT | {"prompt": prompt})


@pytest.mark.parametrize("body", [[], "x", 5])
def test_bodies_that_are_no_objects(body):
    with pytest.raises(RequestError, match="object"):
        parse("chat", body)
