"""Chunks are merged into one answer, or into the events that a client requested."""

import json

import pytest

from fairserve.engine.wire.base import WorkerChunk, has_content
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.openai_endpoint import ChunkWriter
from fairserve.platform.serving.completions.usage import UsageMeter


def chunk(*choices, kind="chat.completion.chunk", model="worker", **more):
    return {
        "id": "x",
        "object": kind,
        "created": 1,
        "model": model,
        "choices": list(choices),
        **more,
    }


def delta(index=0, finish_reason=None, logprobs=None, **fields):
    return {
        "index": index,
        "delta": fields,
        "finish_reason": finish_reason,
        "logprobs": logprobs,
    }


def merged(*chunks, usage=None):
    merger = Merger()
    for each in chunks:
        merger.add(WorkerChunk(each))
    return merger.answer("x", "model", usage)


def test_pieces_of_tool_calls_are_merged():
    def part(index, **fields):
        return delta(tool_calls=[{"index": index, **fields}])

    answer = merged(
        chunk(delta(role="assistant", content=None)),
        chunk(part(0, id="t0", type="function", function={"name": "f", "arguments": ""})),
        chunk(part(0, function={"arguments": '{"a":'})),
        chunk(part(1, id="t1", type="function", function={"name": "g", "arguments": "{}"})),
        chunk(part(0, function={"arguments": " 1}"})),
        chunk(delta(finish_reason="tool_calls")),
    )
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert [call["id"] for call in message["tool_calls"]] == ["t0", "t1"]
    assert all("index" not in call for call in message["tool_calls"])


class Piece(str):
    """A piece of arguments that must not be joined with those before it: each join copies all of it."""

    __slots__ = ()

    def __radd__(self, before):
        raise AssertionError("the arguments are joined before the answer ends")


def test_arguments_of_a_tool_call_are_joined_once():
    merger = Merger()
    for text in ('{"a":', "1", "}"):
        function = {"name": "f", "arguments": Piece(text)}
        part = delta(tool_calls=[{"index": 0, "function": function}])
        merger.add(WorkerChunk(chunk(part)))
    for _ in range(2):  # the answer may be read more than once
        (message,) = merger.messages()
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"a":1}'}


def test_log_probabilities_and_reasoning_are_joined():
    answer = merged(
        chunk(delta(content="a", reasoning_content="th", logprobs={"content": [1]})),
        chunk(delta(content="b", reasoning_content="ink", logprobs={"content": [2, 3]})),
    )
    choice = answer["choices"][0]
    assert choice["logprobs"] == {"content": [1, 2, 3]}
    assert choice["message"]["reasoning_content"] == "think"


def test_log_probabilities_of_completions_are_joined_list_by_list():
    def part(*tokens, offset):
        logprobs = {
            "tokens": [*tokens],
            "token_logprobs": [-1.0] * len(tokens),
            "top_logprobs": [{token: -1.0} for token in tokens],
            "text_offset": list(range(offset, offset + len(tokens))),
        }
        return {"index": 0, "text": "".join(tokens), "logprobs": logprobs, "finish_reason": None}

    first = chunk(part("a", offset=0), kind="text_completion")
    silent = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    answer = merged(
        first,
        chunk(part("b", "c", offset=1), kind="text_completion"),
        chunk(silent, kind="text_completion"),
    )
    shown = answer["choices"][0]["logprobs"]
    assert shown == part("a", "b", "c", offset=0)["logprobs"]
    assert first["choices"][0]["logprobs"]["tokens"] == ["a"], "the chunk itself is not changed"


def test_log_probabilities_of_interleaved_samples_are_separate():
    def content(*values):
        return {"content": [*values], "refusal": None}

    answer = merged(
        chunk(delta(0, content="a", logprobs=content(1))),
        chunk(delta(1, content="b", logprobs=content(2))),
        chunk(delta(0, content="", logprobs=content(3), finish_reason="length")),
        chunk(delta(1, content="", finish_reason="stop")),
    )
    assert [choice["logprobs"] for choice in answer["choices"]] == [content(1, 3), content(2)]


def test_a_chunk_of_log_probabilities_alone_is_passed_on():
    held = delta(content="", logprobs={"content": [1]})
    writer = ChunkWriter("x", "model", include_usage=False)
    event = writer.event(WorkerChunk(chunk(held, usage=USAGE)))
    assert json.loads(event.removeprefix(b"data: "))["choices"] == [held]


def test_plain_completions_are_merged():
    def text(value, **more):
        return {"index": 0, "text": value, "logprobs": None, "finish_reason": None, **more}

    answer = merged(
        chunk(text("a"), kind="text_completion"),
        chunk(text("b", finish_reason="stop", stop_reason="x"), kind="text_completion"),
    )
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop", "stop_reason": "x"}
    ]


USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}


@pytest.mark.parametrize("asked", [False, True])
def test_running_usage_of_the_worker_is_not_passed_on(asked):
    writer = ChunkWriter("x", "model", include_usage=asked)
    events = [
        writer.event(WorkerChunk(each))
        for each in (
            chunk(delta(role="assistant"), usage=USAGE),
            chunk(delta(content="a"), usage=USAGE),
            chunk(delta(content=""), usage=USAGE),
            chunk(usage=USAGE),
        )
    ]
    shown = [json.loads(event.removeprefix(b"data: ")) for event in events if event]
    assert [each["model"] for each in shown] == ["model"] * len(shown)
    assert [each.get("usage", "absent") for each in shown] == [None if asked else "absent"] * 2


@pytest.mark.parametrize("sent_with_a_choice", [False, True])
def test_requested_usage_is_the_platforms_whatever_the_worker_reports(sent_with_a_choice):
    """A worker may send none, or with its last choice, where OpenAI has a separate chunk."""
    writer, meter = ChunkWriter("x", "model", include_usage=True), UsageMeter(10, 0)
    more = {"usage": USAGE} if sent_with_a_choice else {}
    for each in (
        chunk(delta(content="eight by")),
        chunk(delta(content="tes a"), **more),
        chunk(delta(finish_reason="stop"), **more),
    ):
        meter.read(each)
        writer.event(WorkerChunk(each))
    counted = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
    last, done = writer.end(meter.shown(meter.total())).split(b"\n\n", 1)
    assert done == b"data: [DONE]\n\n"
    assert json.loads(last.removeprefix(b"data: ")) == chunk(
        model="model", usage=USAGE if sent_with_a_choice else counted
    )


def test_usage_is_sent_once_and_only_on_request():
    asked, silent = (ChunkWriter("x", "model", include_usage=each) for each in (True, False))
    for writer in (asked, silent):
        assert writer.event(WorkerChunk(chunk(usage=USAGE))) == b""
    assert silent.end(USAGE) == b"data: [DONE]\n\n"
    assert asked.end(USAGE).count(b'"usage"') == 1


def test_an_answer_has_the_platforms_id():
    writer = ChunkWriter("chatcmpl-ours", "worker", include_usage=False)
    event = writer.event(WorkerChunk(chunk(delta(content="a"))))
    assert json.loads(event.removeprefix(b"data: ")) == {
        **chunk(delta(content="a")),
        "id": "chatcmpl-ours",
    }
    merger = Merger()
    merger.add(WorkerChunk(chunk(delta(content="a"))))
    assert merger.answer("chatcmpl-ours", "model", USAGE)["id"] == "chatcmpl-ours"


def test_a_role_alone_is_no_output():
    assert not has_content(delta(role="assistant", content=""))
    assert has_content(delta(content="a"))
    assert has_content(delta(tool_calls=[{}]))
    assert has_content(delta(finish_reason="stop"))
    assert has_content({"text": "a"})
    assert not has_content({"text": "", "finish_reason": None})


def test_the_meter_separates_system_tokens_and_never_decreases():
    meter = UsageMeter(prompt_tokens=10, system_tokens=4)
    assert meter.usage().prompt_tokens == 0, "nothing was used before the worker began"
    details = {"prompt_tokens_details": {"cached_tokens": 8}}
    meter.read(
        chunk(delta(content="a"), usage={"prompt_tokens": 12, "completion_tokens": 3} | details)
    )
    meter.read(chunk(delta(content="a"), usage={"prompt_tokens": 12, "completion_tokens": 2}))
    usage = meter.usage()
    assert (usage.input_tokens, usage.system_tokens) == (8, 4)
    assert (usage.cached_tokens, usage.extend_tokens, usage.output_tokens) == (8, 4, 4), (
        "three, and a chunk that no higher number covers"
    )


def test_output_is_counted_by_chunks_without_reported_usage():
    meter = UsageMeter(prompt_tokens=10, system_tokens=0)
    for _ in range(3):
        meter.read(chunk(delta(content="a")))
    assert (meter.usage().input_tokens, meter.usage().output_tokens) == (10, 3)
