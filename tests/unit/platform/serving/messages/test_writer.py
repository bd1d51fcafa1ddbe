"""Chat answers of every kind, as the blocks and events of a message."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from sse import data_of

from fairserve.engine.wire.base import WorkerChunk
from fairserve.platform.base.errors import WorkerFailedError
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.messages.writer import MessageWriter

EVENT = TypeAdapter(RawMessageStreamEvent)
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 2},
}


def writer(**more):
    call = SimpleNamespace(prompt_tokens=9, tier="default")
    checked = SimpleNamespace(call_id="c", answer_name="m", call=call)
    return MessageWriter(checked, **more)


def chunks_of(deltas, end):
    found = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [*found, {"choices": [{"index": 0, "delta": {}, **end}]}, {"choices": []}]


def events(deltas, more=None, **end):
    writes = writer(**(more or {}))
    body = writes.begin()
    for data in chunks_of(deltas, end):
        body += writes.event(SimpleNamespace(data=data))
    body += asyncio.run(writes.end(USAGE))
    found = [json.loads(data) for data in data_of(body.decode())]
    for event in found:
        EVENT.validate_python(event)
    return found


def whole(deltas, more=None, **end):
    merger = Merger()
    for data in chunks_of(deltas, end):
        merger.add(WorkerChunk(data))
    answer = asyncio.run(writer(**(more or {})).whole(merger, USAGE))
    Message.model_validate(answer)
    return answer


def call(index, *, name=None, arguments="", **more):
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function, **more}]}


DELTAS = [
    {"role": "assistant", "content": ""},
    {"reasoning": "h", "reasoning_content": "h"},
    {"reasoning": "m"},
    {"content": "Let"},
    {"content": " me"},
    call(0, name="look", id="t0"),
    call(0, arguments='{"at":'),
    call(0, arguments='"sea"}'),
    call(1, name="ask", id="t1", arguments="{}"),
]


def test_blocks_start_grow_and_stop_in_turn():
    found = events(DELTAS, finish_reason="tool_calls")
    assert [(event["type"].removeprefix("content_"), event.get("index")) for event in found] == [
        ("message_start", None),
        ("block_start", 0),
        ("block_delta", 0),
        ("block_delta", 0),
        ("block_stop", 0),
        ("block_start", 1),
        ("block_delta", 1),
        ("block_delta", 1),
        ("block_stop", 1),
        ("block_start", 2),
        ("block_delta", 2),
        ("block_delta", 2),
        ("block_stop", 2),
        ("block_start", 3),
        ("block_delta", 3),
        ("block_stop", 3),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert found[-2]["usage"] == {
        "input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens": 4,
    }
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


def test_the_whole_answer_has_the_same_blocks():
    answer = whole(DELTAS, finish_reason="tool_calls")
    assert answer["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Let me"},
        {"type": "tool_use", "id": "t0", "name": "look", "input": {"at": "sea"}},
        {"type": "tool_use", "id": "t1", "name": "ask", "input": {}},
    ]
    hidden = whole(DELTAS, {"show_thinking": False}, finish_reason="tool_calls")
    assert hidden["content"] == answer["content"][1:]
    kinds = [
        event.get("content_block", {}).get("type")
        for event in events(DELTAS, {"show_thinking": False})
    ]
    assert "thinking" not in kinds


@pytest.mark.parametrize(
    ("delta", "end", "expected"),
    [
        ({"content": "x"}, {"finish_reason": "stop"}, ("end_turn", None)),
        ({"content": "x"}, {"finish_reason": "stop", "stop_reason": "ab"}, ("stop_sequence", "ab")),
        ({"content": "x"}, {"finish_reason": "stop", "stop_reason": 7}, ("end_turn", None)),
        ({"content": "x"}, {"finish_reason": "length"}, ("max_tokens", None)),
        ({"content": "x"}, {"finish_reason": "content_filter"}, ("refusal", None)),
        ({"refusal": "no"}, {"finish_reason": "stop"}, ("refusal", None)),
        (call(0, name="look", id="t"), {"finish_reason": "stop"}, ("tool_use", None)),
    ],
)
def test_reasons_for_the_end(delta, end, expected):
    last = events([delta], **end)[-2]["delta"]
    answer = whole([delta], **end)
    for found in (last, answer):
        assert (found["stop_reason"], found["stop_sequence"]) == expected


def test_arguments_that_are_cut_off_are_shown_as_they_are():
    (block,) = whole([call(0, name="look", id="t", arguments='{"a')], finish_reason="length")[
        "content"
    ]
    assert block["input"] == {"INVALID_JSON": '{"a'}


def test_mixed_parts_of_tool_calls_end_the_stream():
    mixed = [call(0, name="a", id="t0"), call(1, name="b", id="t1"), call(0, arguments="{}")]
    with pytest.raises(WorkerFailedError):
        events(mixed, finish_reason="tool_calls")
