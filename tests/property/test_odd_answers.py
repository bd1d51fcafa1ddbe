"""Whatever JSON a worker sends, an answer is written in every protocol, or is the worker's failure."""

import asyncio
import copy
from types import SimpleNamespace

import orjson
from anthropic.types import Message
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.responses import Response

from fairserve.engine.wire.answer_shape import AnswerShape
from fairserve.engine.wire.base import WorkerChunk, WorkerRejectedError, WorkerStreamError
from fairserve.engine.wire.stream_events import StreamEvents
from fairserve.engine.wire.worker_answer import read_whole
from fairserve.interactions.tracking.conversation import Conversation
from fairserve.platform.base.errors import WorkerFailedError
from fairserve.platform.serving.completions.merge import Merger, WholeCompletion
from fairserve.platform.serving.completions.openai_endpoint import ChunkWriter
from fairserve.platform.serving.completions.usage import UsageMeter
from fairserve.platform.serving.messages.writer import MessageWriter
from fairserve.platform.serving.programs.task_calls import output_of
from fairserve.platform.serving.responses.schemas import ResponseBody
from fairserve.platform.serving.responses.writer import ResponseWriter

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FAILURES = (WorkerStreamError, WorkerRejectedError, WorkerFailedError)
TOKEN = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
PART = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DELTA = {"role": "assistant", "content": "a", "reasoning": "r", "tool_calls": [PART, {}]}
CHOICE = {
    **dict.fromkeys(("delta", "message", "text")),
    "index": 0,
    "logprobs": {"content": [TOKEN]},
    "finish_reason": "stop",
}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
HEAD = {"id": "x", "object": "o", "created": 1, "model": "m", "usage": USAGE}
CHUNK = HEAD | {"choices": [CHOICE | {"delta": DELTA, "stop_reason": "x"}]}
ANSWER = HEAD | {"choices": [CHOICE | {"message": DELTA | {"tool_calls": [PART]}}]}
TEXT_CHUNK = HEAD | {"choices": [CHOICE | {"text": "a", "logprobs": {"tokens": ["a"]}}]}

VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    2**63,
    1.5,
    "",
    "x",
    "0",
    "{}",
    [],
    {},
    [None],
    [[]],
    [{}],
]
OBJECTS = [{"a": None}, {"index": 1}, {"name": 5}, {"arguments": []}]
ODD = st.sampled_from([*VALUES, *OBJECTS, ["x"], [{"token": "a"}], [[1]]]).map(copy.deepcopy)


def places(value, path=()):
    """Yield the path of every value within a value."""
    yield path
    for key in (
        value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    ):
        yield from places(value[key], (*path, key))


@st.composite
def odd(draw, template):
    """Return the template with some values replaced or removed."""
    value = copy.deepcopy(template)
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(places(value))))
        if not path:
            break
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        if draw(st.booleans()) and isinstance(inner, dict):
            del inner[path[-1]]
        else:
            inner[path[-1]] = draw(ODD)
    return value


def writers():
    """Return the writers of a chat answer in other protocols."""
    call = SimpleNamespace(prompt_tokens=9, tier="default")
    checked = SimpleNamespace(call_id="c", record_id="r", answer_name="m", call=call)
    body = ResponseBody(model="m", input="x")
    return MessageWriter(checked), ResponseWriter(checked, body, None, None, stored=False)


def write_stream(chunks, *, chat):
    """Write the chunks in every protocol, as the relay and the producer do."""
    meter, merger, others = UsageMeter(9, 0), Merger(), writers() if chat else ()
    openai = ChunkWriter("x", "m", include_usage=True, continuous_usage=True)
    for each in others:
        each.begin()
    for chunk in chunks:
        meter.read(chunk.data)
        merger.add(chunk)
        assert chunk.has_content in (True, False)
        openai.event(chunk)
        for each in others:
            each.event(chunk)
    usage = meter.shown(meter.total())
    openai.end(usage)
    for each in others:
        asyncio.run(each.end(usage))
    return merger, usage


def write_whole(merger, usage, *, chat):
    """Write a whole answer in every protocol, and record it, as the relay does."""
    orjson.dumps(merger.answer("x", "m", usage))
    output_of(merger)
    assert Conversation([{"role": "user", "content": "x"}]).answered(merger.messages())
    assert merger.requested_tools in (True, False)
    if chat:
        for kind, each in zip((Message, Response), writers(), strict=True):
            kind.model_validate_json(orjson.dumps(asyncio.run(each.whole(merger, usage))))


@given(
    st.sampled_from([CHAT, TEXT]),
    st.lists(st.one_of(*map(odd, (CHUNK, TEXT_CHUNK, ANSWER))), max_size=3),
)
@example(CHAT, [CHUNK])
@example(CHAT, [HEAD | {"choices": [CHOICE | {"delta": DELTA, "message": [None]}]}])
@example(TEXT, [TEXT_CHUNK])
def test_a_stream_is_written_or_the_workers_failure(path, chunks):
    events = StreamEvents(AnswerShape(path, 1))
    try:
        read = [events.read(orjson.dumps(each)) for each in chunks]
        merger, usage = write_stream(read, chat=path == CHAT)
        if read and events.is_complete(needs_done=False):
            write_whole(merger, usage, chat=path == CHAT)
    except FAILURES:
        return


@given(st.sampled_from([CHAT, TEXT]), st.one_of(odd(ANSWER), odd(TEXT_CHUNK), ODD))
@example(CHAT, ANSWER)
@example(TEXT, TEXT_CHUNK)
@example(TEXT, HEAD | {"choices": [CHOICE | {"logprobs": None, "text": "a", "message": [None]}]})
def test_a_whole_answer_is_written_or_the_workers_failure(path, answer):
    merger, meter = WholeCompletion(), UsageMeter(9, 0)
    try:
        data = read_whole(orjson.dumps(answer), AnswerShape(path, 1))
        meter.read(data)
    except FAILURES:
        return
    merger.add(WorkerChunk(data))
    write_whole(merger, meter.shown(meter.total()), chat=path == CHAT)
