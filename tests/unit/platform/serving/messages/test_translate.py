"""A message becomes the chat call that means the same; errors keep the client's names of fields."""

import json

import pytest

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.messages.endpoint import _read
from fairserve.platform.serving.messages.schemas import MessageBody

USER = {"role": "user", "content": "Hello"}
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sea"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "blue"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": ""}
TOOL = {"name": "look", "input_schema": {"type": "object"}}


def text(words):
    return {"type": "text", "text": words}


def read(**more):
    body = {"model": "m", "max_tokens": 9, "messages": [USER], **more}
    return _read(MessageBody, json.dumps(body).encode(), lambda size, model: None)[1]


def chat(*messages, **more):
    return read(messages=list(messages), **more).plain["messages"]


def said(role, *blocks):
    return {"role": role, "content": list(blocks)}


def test_system_texts_and_images():
    found = chat(said("user", text("See"), IMAGE), system=[text("a"), text("b")])
    assert found == [
        {"role": "system", "content": [text("a"), text("b")]},
        {
            "role": "user",
            "content": [
                text("See"),
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
    ]
    assert chat(said("user", text("Hello")), system="Brief.") == [
        {"role": "system", "content": "Brief."},
        USER,
    ]


def test_results_of_tools_come_before_the_words_of_their_turn():
    failed = {**RESULT, "tool_use_id": "t2", "content": [text("no"), text("way")], "is_error": True}
    found = chat(
        USER, said("assistant", text("Let me"), USE), said("user", text("so"), RESULT, failed)
    )
    call = {"id": "t1", "type": "function"}
    call["function"] = {"name": "look", "arguments": '{"at":"sea"}'}
    assert found[1:] == [
        {"role": "assistant", "content": "Let me", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "blue"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: noway"},
        {"role": "user", "content": "so"},
    ]


def test_thinking_is_kept_only_since_the_last_words_of_the_user():
    turns = [USER, said("assistant", THINKING, USE), said("user", RESULT)]
    assert chat(*turns)[1]["reasoning"] == "hm"
    later = chat(*turns, said("assistant", text("It is blue.")), USER)
    assert not any("reasoning" in message for message in later)


def test_consecutive_turns_of_a_role_are_one():
    found = chat(USER, said("user", text("again")))
    assert found == [{"role": "user", "content": [text("Hello"), text("again")]}]


def test_fields_become_those_of_a_chat_call():
    schema = {"type": "object"}
    plain = read(
        tools=[{**TOOL, "description": "looks", "type": "custom"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        max_tokens=2000,
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}},
        stop_sequences=["END"],
        metadata={"user_id": "ann"},
        cache_control={"type": "ephemeral"},
        service_tier="auto",
    ).plain
    function = {"name": "look", "parameters": schema, "description": "looks"}
    assert plain == {
        "model": "m",
        "messages": [USER],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": True, "thinking": True},
        "thinking_token_budget": 1024,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
        "max_tokens": 2000,
        "stop": ["END"],
        "metadata": {"user_id": "ann"},
    }
    prefill = read(messages=[USER, said("assistant", text("It"))]).plain
    assert (prefill["continue_final_message"], prefill["add_generation_prompt"]) == (True, False)
    assert read(thinking={"type": "adaptive"}).plain.keys() == read().plain.keys()


def test_demands_have_the_names_of_the_client():
    request = read(
        system="Brief.",
        messages=[said("user", text("See"), IMAGE), said("assistant", USE), said("user", RESULT)],
        tools=[TOOL],
        output_config={"effort": "low"},
    )
    assert [demand.field for demand in request.demands] == [
        "tools",
        "output_config.effort",
        "messages[0].content[1]",
        "messages[1].content[0]",
        "messages[2].content[0]",
    ]


DEEP = {"type": "object"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("max_tokens", {"max_tokens": None}),
        ("temperature", {"temperature": 1.5}),
        ("colour", {"colour": 1}),
        ("messages[0].content[0].type", {"messages": [said("user", {"type": "document"})]}),
        ("messages[0].content[0].type", {"messages": [said("user", USE)]}),
        ("messages[0].content[0].text", {"messages": [said("user", {"type": "text"})]}),
        (
            "messages[0].content[0].source.type",
            {"messages": [said("user", {**IMAGE, "source": {"type": "url", "url": "http://a"}})]},
        ),
        (
            "messages[0].content[0].content[0].type",
            {"messages": [said("user", {**RESULT, "content": [{"type": "document"}]})]},
        ),
        ("messages[1].content[0]", {"messages": [USER, said("assistant", USE)]}),
        ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("tools[0].input_schema", {"tools": [{**TOOL, "input_schema": DEEP}]}),
        ("tool_choice", {"tool_choice": {"type": "any"}}),
        ("tool_choice.name", {"tools": [TOOL], "tool_choice": {"type": "tool"}}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (
            "output_config.format.schema",
            {"output_config": {"format": {"type": "json_schema", "schema": DEEP}}},
        ),
    ],
)
def test_what_is_wrong_is_named_as_the_client_wrote_it(field, more):
    with pytest.raises(InvalidRequestError) as caught:
        read(**more)
    assert caught.value.param == field
    assert caught.value.message.startswith(field)
