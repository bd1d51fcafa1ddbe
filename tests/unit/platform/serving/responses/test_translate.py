"""Items become chat messages, and errors about these name the fields of the response."""

import pytest

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.responses.items import read_items, response_of, with_ids
from fairserve.platform.serving.responses.schemas import read_body
from fairserve.platform.serving.responses.translate import chat_fields

IMAGE = "data:image/png;base64,AA=="
CALL = {"type": "function_call", "call_id": "c1", "name": "tides", "arguments": "{}"}
SECOND = CALL | {"call_id": "c2"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "high"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}


def translated(input_, earlier=(), **fields):
    body = read_body({"model": "m", "input": input_, **fields})
    before = read_items(list(earlier)) if earlier else []
    return chat_fields(body, before, read_items(body.input))


def asked(call_id):
    function = {"name": "tides", "arguments": "{}"}
    return {"id": call_id, "type": "function", "function": function}


def test_items_of_one_turn_are_one_message():
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        THOUGHT,
        {"role": "assistant", "content": [{"type": "output_text", "text": "wait"}]},
        CALL,
        SECOND,
        RESULT,
        RESULT | {"call_id": "c2", "output": [{"type": "input_text", "text": "low"}]},
    ]
    assert translated(items, instructions="rule").plain["messages"] == [
        {"role": "system", "content": "rule"},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "wait",
            "reasoning": "hm",
            "tool_calls": [asked("c1"), asked("c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "high"},
        {"role": "tool", "tool_call_id": "c2", "content": "low"},
    ]


def test_reasoning_of_earlier_turns_is_omitted():
    items = [{"role": "user", "content": "a"}, THOUGHT, CALL, RESULT, THOUGHT]
    items += [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    messages = translated(items).plain["messages"]
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert all("reasoning" not in message for message in messages)


def test_images_stay_parts():
    parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": IMAGE}]
    (message,) = translated([{"role": "user", "content": parts}]).plain["messages"]
    assert message["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "auto"}},
    ]


def test_every_field_has_its_chat_field():
    schema = {"type": "object"}
    found = translated(
        "x",
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.5,
        top_logprobs=2,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        tools=[{"type": "function", "name": "f", "parameters": schema, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        stream=True,
        user="ann",
        metadata={"a": "b"},
        prompt_cache_key="k",
    ).plain
    assert found == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.5,
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": schema, "strict": True},
        },
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "parameters": schema, "strict": True},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "stream": True,
        "user": "ann",
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
    }


def test_demands_name_the_items_that_they_come_from():
    items = [{"role": "user", "content": "a"}, THOUGHT, CALL, RESULT]
    request = translated(items, earlier=[{"role": "user", "content": "b"}, CALL]).read()
    assert [demand.field for demand in request.demands] == [
        "previous_response_id",
        "input[1]",
        "input[3]",
    ]
    image = {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}
    request = translated([image], text={"verbosity": "low"}, reasoning={"effort": "low"}).read()
    assert {demand.field for demand in request.demands} == {
        "input[0].content[0]",
        "text.verbosity",
        "reasoning.effort",
    }


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "message", "role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": [{"type": "output_text", "text": "x"}]}, None),
        (CALL | {"arguments": 1}, "input[0].arguments"),
        (RESULT | {"output": [{"type": "input_image"}]}, "input[0].output[0].type"),
        (THOUGHT | {"encrypted_content": "x"}, "input[0].encrypted_content"),
        ({"content": "x"}, "input[0].id"),
    ],
)
def test_wrong_items_name_their_field(item, param):
    with pytest.raises(InvalidRequestError) as caught:
        read_items([item])
    assert caught.value.param == (param or "input[0].content[0].type")
    assert caught.value.param in caught.value.message


def test_ids_of_stored_items_lead_to_their_response():
    record = f"call_{'a' * 32}"
    first, second = with_ids(read_items([CALL, RESULT | {"id": "mine"}]), record)
    assert (response_of(first["id"]), second["id"]) == (f"resp_{record}", "mine")
    assert response_of("mine") is None
