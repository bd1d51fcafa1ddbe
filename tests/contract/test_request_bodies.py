"""All protocols treat null fields, tools, schemas and media of a body alike.

The readers are those of the endpoints, of batch lines and of programs, which lead to the same fields.
"""

import copy

import orjson
import pytest

from fairserve.engine.wire.request_fields import fields_of, passed_on
from fairserve.engine.wire.worker_json import MAX_DEPTH
from fairserve.interactions.programs.program import ProgramLimits
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.batches.lines import check, parse
from fairserve.platform.serving.completions.requests import read_fields as read_chat
from fairserve.platform.serving.completions.requests import read_object
from fairserve.platform.serving.embeddings.requests import read_fields as read_pooling
from fairserve.platform.serving.interactions.opening import _read
from fairserve.platform.serving.messages.endpoint import _read as read_message
from fairserve.platform.serving.messages.schemas import MessageBody
from fairserve.platform.serving.programs.declaration import read_program
from fairserve.platform.serving.responses.items import read_items
from fairserve.platform.serving.responses.schemas import read_body as read_response_body
from fairserve.platform.serving.responses.translate import chat_fields as response_fields

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(body):
    return read_chat("/v1/chat/completions", {"model": "m", "messages": MESSAGES, **body}).plain


def text(body):
    return read_chat("/v1/completions", {"model": "m", "prompt": "hi", **body}).plain


def embedding(body):
    return read_pooling("/v1/embeddings", {"model": "m", "input": "hi", **body}).plain


def rerank(body):
    fields = {"model": "m", "query": "hi", "documents": ["a"], **body}
    return read_pooling("/v1/rerank", fields).plain


def message(body):
    raw = orjson.dumps({"model": "m", "max_tokens": 5, "messages": MESSAGES, **body})
    return read_message(MessageBody, raw, lambda size, model: None)[1].plain


def response(body):
    read = read_response_body({"model": "m", "input": "hi", **body})
    return response_fields(read, [], read_items(read.input)).read().plain


def program(body):
    """Return the request of a program whose node has these further fields."""
    node = {"id": "a", "model": "m", "messages": MESSAGES, "sampling": body}
    return read_program({"nodes": [node]}, ProgramLimits()).nodes["a"].sampling


def words(text):
    return text.split()


# --- null -----------------------------------------------------------------------------------------

OPENAI_CHAT = words(
    "audio function_call functions logit_bias max_tokens moderation modalities prediction "
    "prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort "
    "response_format safety_identifier seed service_tier stop store stream_options "
    "temperature tool_choice tools top_logprobs user verbosity web_search_options metadata n "
    "parallel_tool_calls priority"
)
OPENAI_TEXT = words("best_of echo logprobs suffix stop user logit_bias seed stream_options")
OPENAI_RESPONSE = words(
    "background context_management conversation include instructions max_output_tokens "
    "max_tool_calls metadata moderation parallel_tool_calls previous_response_id prompt "
    "prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier "
    "service_tier store stream stream_options temperature text tool_choice tools top_logprobs "
    "top_p truncation user"
)
ANTHROPIC = words(
    "system temperature top_p top_k stop_sequences metadata tools tool_choice thinking stream "
    "service_tier container mcp_servers context_management output_config output_format "
    "inference_geo cache_control betas speed"
)
READERS = {
    "chat": (chat, {*OPENAI_CHAT, *fields_of("/v1/chat/completions")} - {"model", "messages"}),
    "text": (text, {*OPENAI_TEXT, *fields_of("/v1/completions")} - {"model", "prompt"}),
    "embedding": (embedding, set(fields_of("/v1/embeddings")) - {"model", "input"}),
    "rerank": (rerank, set(fields_of("/v1/rerank")) - {"model", "query", "documents"}),
    "message": (message, set(ANTHROPIC)),
    "response": (response, set(OPENAI_RESPONSE)),
    "program": (program, {"audio", "prediction", "stop", "tools", "unknown"}),
}


@pytest.mark.parametrize("protocol", READERS)
def test_a_null_field_counts_as_absent(protocol):
    """Clients write every optional field, many as null, and those that this server does not know."""
    read, names = READERS[protocol]
    plain = read({})
    for name in sorted(names | {"a_field_of_a_later_version"}):
        read_so = read({name: None})
        if protocol != "program":
            assert read_so == plain, name
    if protocol != "program":
        assert read(dict.fromkeys(names)) == plain


NESTED = {
    "chat": (
        {
            "stream": True,
            "stream_options": {"include_usage": None, "later": None},
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "strict": None},
            },
            "chat_template_kwargs": {"thinking": None},
            "tools": [
                {"type": "function", "function": {"name": "f", "description": None}, "x": None}
            ],
            "tool_choice": {"type": "function", "function": {"name": "f", "later": None}},
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "hi", "cache_control": None}],
                },
                {
                    **dict.fromkeys(("name", "refusal", "audio", "function_call", "annotations")),
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "index": None,
                            "function": {"name": "f", "arguments": "{}", "later": None},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "1", "name": None},
            ],
        }
    ),
    "message": {
        "system": [{"type": "text", "text": "a", "cache_control": None, "citations": None}],
        "tools": [{"name": "f", "input_schema": {}, "type": None, "later": None}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": None},
        "metadata": {"user_id": None},
    },
    "response": {
        "text": {"format": None, "verbosity": None},
        "reasoning": {"effort": None, "summary": None, "context": None},
        "tools": [{"type": "function", "name": "f", "strict": None, "defer_loading": None}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi", "later": None}]},
            {"type": "message", "role": "assistant", "phase": None, "id": None, "content": "x"},
        ],
    },
}


def nulls(value):
    """Return the number of null fields in a value, without the content of messages."""
    if isinstance(value, list):
        return sum(map(nulls, value))
    if not isinstance(value, dict):
        return 0
    own = sum(each is None for name, each in value.items() if name != "content")
    return own + sum(map(nulls, value.values()))


@pytest.mark.parametrize("protocol", NESTED)
def test_nulls_in_the_parts_of_a_body_reach_no_worker(protocol):
    body = NESTED[protocol]
    before = copy.deepcopy(body)
    plain = READERS[protocol][0](body)
    assert body == before, "it is not changed in place"
    assert nulls(body) > 3
    assert nulls(passed_on("/v1/chat/completions", "vllm", plain)) == 0


def test_the_nulls_of_a_schema_stay():
    schema = {"type": "object", "properties": {"a": {"enum": ["x", None], "default": None}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    format_ = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    plain = chat({"tools": [tool], "response_format": format_})
    assert plain["tools"][0]["function"]["parameters"] == schema
    assert plain["response_format"]["json_schema"]["schema"] == schema


def test_nulls_of_a_program_and_of_a_line_of_a_batch_count_as_absent():
    node = {"id": "a", "model": "m", "messages": MESSAGES}
    more = dict.fromkeys(("agent", "map", "when", "retries", "sampling", "prompt", "later"))
    plain = read_program({"nodes": [node]}, ProgramLimits())
    program = read_program({"nodes": [node | more], "result": None, "later": None}, ProgramLimits())
    assert program.nodes == plain.nodes
    body = orjson.dumps({"nodes": [node | more], "user": None, "sink": None, "later": None})
    assert _read(body, ProgramLimits()).program is not None
    line = {"custom_id": "1", "method": "POST", "url": "/v1/x", "body": {"stream": None}}
    assert parse(1, orjson.dumps(line | {"later": None}), "/v1/x").custom_id == "1"


@pytest.mark.parametrize("read", [chat, text, message, response])
def test_a_required_field_that_is_null_is_missing(read):
    with pytest.raises(InvalidRequestError, match="model: Field required") as rejected:
        read({"model": None})
    assert rejected.value.code == "missing_required_parameter"


def nested(depth):
    """Return a body's field of this depth, as JSON."""
    return b'{"x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


READ_RAW = {
    "call": read_object,
    "program": lambda raw: _read(raw, ProgramLimits()),
}


@pytest.mark.parametrize("protocol", READ_RAW)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 1_000, 100_000])
def test_a_body_that_is_nested_too_deeply_is_rejected(protocol, depth):
    with pytest.raises(InvalidRequestError, match=r"too deeply|depth limit") as rejected:
        READ_RAW[protocol](nested(depth))
    assert rejected.value.code == "malformed_json"
    orjson.dumps(read_object(nested(MAX_DEPTH)))


@pytest.mark.parametrize("depth", [MAX_DEPTH, 300, 1_000])
def test_a_line_of_a_batch_that_is_nested_too_deeply_is_an_error_of_that_line(depth):
    line = b'{"custom_id":"%d","method":"POST","url":"/v1/x","body":%s}\n'
    total, errors = check([line % (1, nested(depth)), line % (2, b"{}")], "/v1/x", 10, 10_000)
    assert total == 2
    assert [(each["line"], each["code"]) for each in errors] == [(1, "invalid_json_line")]
    assert f"allowed: {MAX_DEPTH} levels" in errors[0]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "a\0b"}, "previous_response_id"),
        ({"conversation": "a\0b"}, "conversation"),
        ({"conversation": {"id": "a\nb"}}, "conversation.id"),
        ({"input": [{"id": "a\0b", "role": "user", "content": "x"}]}, "input[0].id"),
        ({"input": [{"id": "\x7f", "type": "item_reference"}]}, "input[0].id"),
    ],
)
def test_ids_that_a_response_stores_are_printable(fields, param):
    error = rejected("response", fields)
    assert (error.param, "not printable" in error.message) == (param, True)


# --- tools, schemas and media ---------------------------------------------------------------------

ADDRESS = "http://169.254.169.254/evil"
TOOL_OF = {
    "chat": lambda more: {"type": "function", "function": {"name": "f"}, **more},
    "message": lambda more: {"name": "f", "input_schema": {}, **more},
    "response": lambda more: {"type": "function", "name": "f", **more},
    "program": lambda more: {"type": "function", "function": {"name": "f"}, **more},
}
SERVER_TOOLS = [
    {"type": "mcp", "server_label": "x", "server_url": ADDRESS},
    {"type": "web_search", "filters": {"allowed_domains": ["evil"]}},
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "file_search", "vector_store_ids": ["a"]},
    {"type": "custom_tool", "name": "x"},
]


def rejected(protocol, body):
    with pytest.raises(InvalidRequestError) as error:
        READERS[protocol][0](body)
    assert error.value.param is not None
    assert error.value.param in error.value.message
    return error.value


@pytest.mark.parametrize("protocol", TOOL_OF)
def test_only_functions_of_the_client_are_tools(protocol):
    own = TOOL_OF[protocol]({})
    READERS[protocol][0]({"tools": [own]})
    for tool in SERVER_TOOLS:
        error = rejected(protocol, {"tools": [own, tool]})
        assert error.param.endswith("tools[1].type"), tool
        assert tool["type"] in error.message
    for more in ({"url": ADDRESS}, {"server_url": ADDRESS}, {"name": 5, "function": 5}):
        assert "tools[0]" in rejected(protocol, {"tools": [TOOL_OF[protocol](more)]}).param
    for tools in ("x", [5], [[]], [{}], [{"type": 5}], [own] * 129):
        assert "tools" in rejected(protocol, {"tools": tools}).param


@pytest.mark.parametrize(
    "more", [{"evil": ADDRESS}, {"parameters": 5}, {"name": ""}, {"strict": "x"}]
)
def test_a_function_of_a_chat_tool_has_listed_fields_only(more):
    tool = {"type": "function", "function": {"name": "f", **more}}
    (name,) = more
    assert rejected("chat", {"tools": [tool]}).param == f"tools[0].function.{name}"


@pytest.mark.parametrize(
    "tool",
    [
        {**TOOL_OF["chat"]({}), "strict": True},
        {**TOOL_OF["chat"]({}), "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "function", "function": {"name": "f", "cache_control": {"type": "ephemeral"}}},
    ],
)
def test_a_tool_may_have_the_marks_of_other_formats(tool):
    assert chat({"tools": [tool]})["tools"] == [tool]
    mark = {**TOOL_OF["chat"]({}), "cache_control": {"type": "ephemeral", "ttl": ADDRESS}}
    assert rejected("chat", {"tools": [mark]}).param == "tools[0].cache_control.ttl"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "mcp", "server_label": "x"}, "tool_choice.type"),
        (
            {"type": "function", "function": {"name": "f", "url": ADDRESS}},
            "tool_choice.function.url",
        ),
        ({"type": "function"}, "tool_choice.function"),
        (5, "tool_choice"),
    ],
)
def test_the_choice_of_a_tool_has_listed_fields_only(choice, param):
    assert rejected("chat", {"tool_choice": choice}).param == param


NAMED = {
    "chat": lambda name: {"type": "function", "function": {"name": name}},
    "response": lambda name: {"type": "function", "name": name},
    "program": lambda name: {"type": "function", "function": {"name": name}},
}


@pytest.mark.parametrize("protocol", NAMED)
def test_the_choice_of_a_tool_is_one_that_the_call_has(protocol):
    read, named = READERS[protocol][0], NAMED[protocol]
    tools = {"tools": [TOOL_OF[protocol]({})]}
    for choice in ("none", "auto", "required", named("f")):
        read(tools | {"tool_choice": choice})
    for fields, text in (
        (tools | {"tool_choice": "banana"}, "'none', 'auto' or 'required'"),
        (tools | {"tool_choice": named("g")}, "names a function that is not in tools"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"tool_choice": named("f")}, "needs tools"),
    ):
        error = rejected(protocol, fields)
        assert (error.param or "").endswith("tool_choice")
        assert text in error.message


SCHEMAS = [
    {"$ref": ADDRESS},
    {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
    {"$defs": {"a": {"items": [{"$dynamicRef": ADDRESS}]}}},
    {"$recursiveRef": "other.json"},
    {"$ref": "other.json#/a"},
    {"$ref": ""},
    {"properties": {"a": {"$id": ADDRESS}}},
    {"$schema": ADDRESS},
    {"$schema": "https://json-schema.org.evil/x"},
    {"$vocabulary": {ADDRESS: True}},
]
SCHEMA_PLACES = {
    "chat": [
        lambda s: {"response_format": {"type": "json_schema", "json_schema": {"schema": s}}},
        lambda s: {"tools": [{"type": "function", "function": {"name": "f", "parameters": s}}]},
        lambda s: {"structured_outputs": {"json": s}},
    ],
    "text": [lambda s: {"structured_outputs": {"json": s}}],
    "message": [
        lambda s: {"tools": [{"name": "f", "input_schema": s}]},
        lambda s: {"output_config": {"format": {"type": "json_schema", "schema": s}}},
    ],
    "response": [
        lambda s: {"text": {"format": {"type": "json_schema", "name": "a", "schema": s}}},
        lambda s: {"tools": [{"type": "function", "name": "f", "parameters": s}]},
        lambda s: {"structured_outputs": {"json": s}},
    ],
    "program": [
        lambda s: {"response_format": {"type": "json_schema", "json_schema": {"schema": s}}},
        lambda s: {"tools": [{"type": "function", "function": {"name": "f", "parameters": s}}]},
    ],
}


@pytest.mark.parametrize("protocol", SCHEMA_PLACES)
def test_a_schema_refers_to_nothing_outside(protocol):
    for place in SCHEMA_PLACES[protocol]:
        for schema in SCHEMAS:
            error = rejected(protocol, place(schema))
            assert "$" in error.message, schema
        own = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": ADDRESS,
            "properties": {"a": {"$ref": "#/$defs/b"}, "$ref": {"type": "string"}},
            "$defs": {"b": {"description": "see https://example.org"}},
        }
        body = place(own)
        read = READERS[protocol][0](body)
        assert protocol == "program" or ADDRESS not in str(read), "no worker gets the id"
        assert body == place(own), "it is not changed in place"
        assert "#/$defs/b" in str(read)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"tool_calls": [{**CALL, "type": "mcp"}]}, "tool_calls[0].type"),
        ({"tool_calls": [{**CALL, "function": {}}]}, "tool_calls[0].function.name"),
        (
            {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"url": ADDRESS}}}]},
            "tool_calls[0].function.arguments",
        ),
        ({"tool_calls": [{**CALL, "id": {"url": ADDRESS}}]}, "tool_calls[0].id"),
        ({"tool_calls": [None]}, "tool_calls[0]"),
        ({"tool_calls": "x"}, "tool_calls"),
        (
            {"content": [{"type": "image_url", "image_url": {"url": ADDRESS}}]},
            "content[0].image_url",
        ),
        (
            {"content": [{"type": "input_video", "video": ADDRESS}]},
            "content[0].type",
        ),
        (
            {
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:,x", "detail": ADDRESS}}
                ]
            },
            "content[0].image_url.detail",
        ),
        (
            {
                "content": [
                    {"type": "input_audio", "input_audio": {"data": ADDRESS, "format": "wav"}}
                ]
            },
            "content[0].input_audio.data",
        ),
        ({"content": [{"type": "input_audio", "input_audio": "x"}]}, "content[0].input_audio"),
        ({"content": [{"type": "text", "text": {"url": ADDRESS}}]}, "content[0].text"),
        ({"content": [{"type": "refusal", "refusal": [ADDRESS]}]}, "content[0].refusal"),
        ({"name": {"url": ADDRESS}}, "name"),
        ({"tool_call_id": [ADDRESS]}, "tool_call_id"),
        ({"refusal": {"url": ADDRESS}}, "refusal"),
        ({"reasoning": [{"url": ADDRESS}]}, "reasoning"),
        ({"reasoning_content": {"url": ADDRESS}}, "reasoning_content"),
    ],
)
def test_the_parts_of_a_message_bring_no_addresses(message, param):
    body = {"messages": [{"role": "assistant", "content": "x", **message}]}
    assert rejected("chat", body).param == f"messages[0].{param}"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}
SOUND = {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}}
TEXT = {"type": "text", "text": "x"}
EVIL = {"url": ADDRESS}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        # what servers add to answers, and clients send back
        ({"tool_calls": [{**CALL, "extra_content": {"google": EVIL}}]}, {"tool_calls": [CALL]}),
        ({"tool_calls": [{**CALL, "provider_specific_fields": EVIL}]}, {"tool_calls": [CALL]}),
        (
            {"tool_calls": [{**CALL, "function": {**CALL["function"], "parsed_arguments": {}}}]},
            {"tool_calls": [CALL]},
        ),
        ({"tool_calls": [{**CALL, "index": 0}]}, {"tool_calls": [{**CALL, "index": 0}]}),
        (
            {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": None}}]},
            {"tool_calls": [CALL]},
        ),
        ({"tool_calls": [{**CALL, "function": {"name": "f"}}]}, {"tool_calls": [CALL]}),
        (
            {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": ""}}]},
            {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": ""}}]},
        ),
        ({"tool_calls": [], "function_call": None}, {"tool_calls": []}),
        ({"annotations": [{"type": "url_citation", "url_citation": EVIL}]}, {}),
        ({"refusal": None, "audio": None, "annotations": []}, {}),
        ({"refusal": "No."}, {"refusal": "No."}),
        (
            {"reasoning": "a", "reasoning_content": "b"},
            {"reasoning": "a", "reasoning_content": "b"},
        ),
        ({"reasoning_details": [EVIL], "thinking_blocks": [EVIL], "images": [EVIL]}, {}),
        ({"parsed": {"a": 1}, "stop_reason": None, "token_ids": [1], "cache_control": EVIL}, {}),
        # marks of clients for other servers
        (
            {"content": [{**TEXT, "cache_control": {"type": "ephemeral"}, "id": "1", "index": 0}]},
            {"content": [TEXT]},
        ),
        ({"content": [{**TEXT, "annotations": [EVIL], "image_url": ADDRESS}]}, {"content": [TEXT]}),
        (
            {"content": [{**IMAGE, "image_url": {**IMAGE["image_url"], "format": "image/png"}}]},
            {"content": [IMAGE]},
        ),
        (
            {"content": [{**IMAGE, "image_url": {**IMAGE["image_url"], "evil": ADDRESS}}]},
            {"content": [IMAGE]},
        ),
        (
            {"content": [{**SOUND, "input_audio": {**SOUND["input_audio"], **EVIL}}]},
            {"content": [SOUND]},
        ),
    ],
)
@pytest.mark.parametrize("role", ["assistant", "user"])
def test_fields_of_messages_that_are_not_listed_reach_no_worker(role, sent, kept):
    """Clients send back what any server answered, and mark what they send for any server."""
    body = {"messages": [{"role": role, "content": "x", **sent}]}
    before = copy.deepcopy(body)
    assert chat(body)["messages"] == [{"role": role, "content": "x", **kept}]
    assert body == before, "it is not changed in place"


BLOCKS = {
    "text": {"type": "text", "text": "x"},
    "thinking": {"type": "thinking", "thinking": "x", "signature": ""},
    "tool_use": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_fields_of_blocks_that_are_not_listed_reach_no_worker(kind):
    def read(more):
        turn = {"role": "assistant", "content": [BLOCKS["text"], {**BLOCKS[kind], **more}]}
        return message({"messages": [*MESSAGES, {**turn, **more}, *MESSAGES]})

    assert read({"extra_content": EVIL, "index": 0, "cache_control": EVIL}) == read({})


ITEMS = {
    "message": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "x"}],
    },
    "function_call": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    "reasoning": {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "x"}],
    },
}


@pytest.mark.parametrize("kind", ITEMS)
def test_fields_of_items_that_are_not_listed_are_not_stored(kind):
    def read(more):
        item = {**ITEMS[kind], **more}
        for name in ("content", "summary"):
            if name in item:
                item[name] = [{**part, **more} for part in item[name]]
        return read_items([*MESSAGES, item])

    assert read({"phase": "final_answer", "extra_content": EVIL}) == read({})


@pytest.mark.parametrize(
    ("protocol", "body", "text"),
    [
        ("chat", {"stop": ["a"] * 17}, "stop: .*at most 16 items"),
        ("chat", {"stop": ["a", ""]}, r"stop\[1\]: .*at least 1 character"),
        ("chat", {"stop": 5}, "stop is 5: .*string, or a valid list"),
        (
            "chat",
            {"tool_choice": {"type": "x", "function": {"name": "f"}}},
            "tool_choice.type: .*'function'",
        ),
        ("chat", {"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content is 5: "),
        ("text", {"stop": ["a"] * 17}, "stop: .*at most 16 items"),
        ("embedding", {"input": ["a", ""]}, r"input\[1\]: .*at least 1 character"),
        ("embedding", {"input": ["a"] * 2049}, "input: .*at most 2048 items"),
        ("embedding", {"input": [1, -1]}, r"input\[1\] is -1: .*greater than or equal to 0"),
        ("rerank", {"documents": ["a", ""]}, r"documents\[1\]: .*at least 1 character"),
        ("response", {"stop": ["a"] * 17}, "stop: .*at most 16 items"),
        ("response", {"conversation": "x" * 129}, "conversation: .*at most 128"),
        (
            "response",
            {"tools": [TOOL_OF["response"]({})], "tool_choice": {"type": "function"}},
            "tool_choice.name: Field required",
        ),
        ("message", {"stop_sequences": ["a"] * 17}, "stop_sequences: .*at most 16 items"),
        ("program", {"stop": ["a"] * 17}, "stop.*at most 16 items"),
    ],
)
def test_the_error_of_a_union_names_the_true_reason(protocol, body, text):
    with pytest.raises(InvalidRequestError, match=text):
        READERS[protocol][0](body)
