"""Every field of a body is honoured, neutral, or rejected by name."""

import pytest

from fairserve.engine.torch.openai.request import RequestError, parse
from fairserve.engine.torch.output_format import OutputFormat
from fairserve.engine.wire.request_fields import CHAT_FIELDS, TEXT_FIELDS

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def test_supported_fields_are_honoured():
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
            "top_k": 7,
            "min_p": 0.25,
            "presence_penalty": 1,
            "frequency_penalty": -0.5,
            "logit_bias": {"5": -100, "6": 1.5},
            "min_tokens": 2,
            "logprobs": True,
            "top_logprobs": 20,
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
    params = request.params(9, 1, None)
    assert (params.max_tokens, params.temperature, params.top_p) == (9, 0, 0.5)
    assert (params.top_k, params.min_p, params.logit_bias) == (7, 0.25, {5: -100.0, 6: 1.5})
    assert (params.presence_penalty, params.frequency_penalty) == (1.0, -0.5)
    assert (params.min_tokens, params.logprobs, params.seed) == (2, 20, 0)
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("x",), frozenset([3]), True)


def test_logprobs_are_a_switch_in_chat_and_a_number_in_completions():
    for extra, expected in [
        ({}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"top_logprobs": 0}, None),
    ]:
        assert parse("chat", CHAT | extra).logprobs == expected
    for extra, expected in [({}, None), ({"logprobs": 0}, 0), ({"logprobs": 5}, 5)]:
        assert parse("completion", TEXT | extra).logprobs == expected


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 2, "top_logprobs": 2}, "top_logprobs"),
        ({"echo": True}, "echo"),
        ({"logprobs": 1, "echo": True}, "echo"),
    ],
)
def test_unsupported_fields_of_completions_are_rejected_by_name(extra, param):
    with pytest.raises(RequestError, match=param) as caught:
        parse("completion", TEXT | extra)
    assert caught.value.param == param


def test_response_formats_are_parsed():
    schema = {"type": "array"}
    full = {"name": "n", "description": "d", "strict": True, "schema": schema}
    for wanted, expected in [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}, schema),
        ({"type": "json_schema", "json_schema": full}, schema),
    ]:
        for kind, body in (("chat", CHAT), ("completion", TEXT)):
            found = parse(kind, body | {"response_format": wanted}).output_format
            assert (found and found.definition) == expected


@pytest.mark.parametrize(
    ("wanted", "kind", "definition"),
    [
        ({"json": {"type": "null"}, "regex": None}, "json", {"type": "null"}),
        ({"json": '{"type": "null"}'}, "json", '{"type": "null"}'),
        ({"json_object": True}, "json", {"type": "object"}),
        ({"choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
    ],
)
def test_structured_outputs_have_one_form(wanted, kind, definition):
    (field,) = (name for name, value in wanted.items() if value is not None)
    found = parse("chat", CHAT | {"structured_outputs": wanted}).output_format
    assert found == OutputFormat(f"structured_outputs.{field}", kind, definition)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"temperature": 2.5}, "temperature is 2.5; allowed: a number from 0 to 2"),
        ({"temperature": -1}, "temperature is -1; allowed: a number from 0 to 2"),
        ({"temperature": float("nan")}, "temperature is nan; allowed: a number from 0 to 2"),
        ({"top_k": -2}, "top_k is -2; allowed: a whole number from -1 to 2147483647"),
        ({"presence_penalty": 3}, "presence_penalty is 3; allowed: a number from -2 to 2"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5; allowed: .* from 0 to 4"),
        ({"seed": "x" * 1000}, "seed is 'x{59}...; allowed"),
        ({"top_p": 0}, "top_p is 0; allowed: a number over 0, up to 1"),
        ({"stream": "yes"}, "stream is 'yes'; allowed: true, false"),
        ({"cache_salt": 5}, "cache_salt is 5; allowed: a string"),
        ({"max_tokens": 0}, "max_tokens is 0; allowed: a whole number, 1 or more"),
        (
            {"logit_bias": {"5": 101}},
            "logit_bias has 101; allowed: an object of up to 1024 token ids",
        ),
        ({"messages": []}, r"messages is \[\]; allowed: a list of at least one message"),
        ({"vllm_xargs": {"weight": 0}}, "vllm_xargs.weight is 0: input should be greater than 0"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content must be given"),
    ],
)
def test_error_messages_name_field_value_and_range(extra, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        parse("chat", CHAT | extra)


def test_missing_fields_get_defaults():
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
        {"top_k": -1, "min_p": 0, "min_tokens": 0},
        {"metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
    ],
)
def test_neutral_fields_are_accepted(neutral):
    parse("chat", CHAT | neutral)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": "json"}, "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}},
            "response_format.json_schema.x",
        ),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 1}, "min_tokens"),
        ({"logprobs": 0}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "min_tokens": 1}, "allowed_token_ids"),
        (
            {"allowed_token_ids": [1], "response_format": {"type": "json_object"}},
            "allowed_token_ids",
        ),
        ({"skip_special_tokens": 0}, "skip_special_tokens"),
        ({"bad_words": "x"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
        ({"bad_words": ["x" * 201]}, "bad_words"),
        ({"bad_words": ["x"], "allowed_token_ids": [1]}, "bad_words"),
        ({"bad_words": ["x"], "response_format": {"type": "json_object"}}, "bad_words"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json": True}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 1}, "min_tokens"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
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
def test_unsupported_fields_are_rejected_by_name(extra, param):
    with pytest.raises(RequestError) as caught:
        parse("chat", CHAT | extra)
    assert caught.value.param == param
    assert param.split(".")[-1] in caught.value.message


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [[1, 2]], [1, True], 5])
def test_invalid_prompts_are_rejected(prompt):
    with pytest.raises(RequestError, match="prompt"):
        parse("completion", TEXT | {"prompt": prompt})


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("chat", {"messages": ["x"] * 100_000}),
        (
            "chat",
            {"messages": [{"role": "u", "content": "x"} | {f"k{n}": 1 for n in range(100_000)}]},
        ),
        ("chat", {f"k{n}": 1 for n in range(100_000)}),
        ("chat", {"vllm_xargs": {f"k{n}": 1 for n in range(100_000)}}),
        ("chat", {"logit_bias": {f"k{n}": 1 for n in range(100_000)}}),
        ("chat", {"stop": [""] * 100_000}),
        ("completion", {"prompt": ["x"] * 100_000}),
    ],
)
def test_errors_of_one_body_are_bounded(kind, extra):
    with pytest.raises(RequestError) as caught:
        parse(kind, (CHAT if kind == "chat" else TEXT) | extra)
    cause = caught.value.__cause__
    assert cause is None or cause.error_count() <= 2048


@pytest.mark.parametrize("body", [[], "x", 5])
def test_bodies_that_are_no_objects_are_rejected(body):
    with pytest.raises(RequestError, match="object"):
        parse("chat", body)


@pytest.mark.parametrize("server", ["embedded", "demo"])
@pytest.mark.parametrize(
    ("kind", "body", "rules"), [("chat", CHAT, CHAT_FIELDS), ("completion", TEXT, TEXT_FIELDS)]
)
def test_every_field_that_the_platform_sends_here_is_known(kind, body, rules, server):
    sent = [name for name, rule in rules.items() if server in rule.kinds]
    parse(kind, dict.fromkeys(sent) | body, with_tools=server == "demo")
    assert len(sent) > 10
