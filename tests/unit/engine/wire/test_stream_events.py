"""Test the events of a streamed answer, however its bytes are split."""

import json
from itertools import pairwise

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairserve.engine.wire import stream_events
from fairserve.engine.wire.answer_shape import AnswerShape
from fairserve.engine.wire.base import WorkerStreamError
from fairserve.engine.wire.stream_events import StreamEvents


def chunk(text, finish=None, index=0):
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice]}


CHUNKS = [chunk("ä"), chunk("b", index=1), chunk("", "stop"), chunk("", "length", 1)]
RAW = b"\xef\xbb\xbf: waiting\n\ndata:\n\ndata: \r\n\r\n" + b"".join(
    b"event: x\r\ndata:" + json.dumps(each).encode() + b"\r\n\r\n" for each in CHUNKS
)


def new_events():
    return StreamEvents(AnswerShape("/v1/chat/completions", 2))


def read(events, event):
    """Return the chunk of an event; None for the end."""
    found = events.read(event)
    return None if found is None else found.data


def read_all(events, *parts):
    return [read(events, event) for part in parts for event in events.feed(part)]


@given(st.lists(st.integers(0, len(RAW)), max_size=8))
def test_any_split_gives_the_same_chunks(cuts):
    places = [0, *sorted(cuts), len(RAW)]
    parts = [RAW[start:end] for start, end in pairwise(places)]
    events = new_events()
    assert read_all(events, *parts, b"data: [DONE]\n\n") == [*CHUNKS, None]


@given(st.integers(0, 12))
def test_a_byte_order_mark_precedes_the_first_event_or_the_object(cut):
    chunks = [chunk("a"), chunk("", "stop")]
    lines = b"\xef\xbb\xbf" + b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in chunks)
    assert read_all(new_events(), lines[:cut], lines[cut:]) == chunks
    message = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}
    whole = b"\xef\xbb\xbf" + json.dumps({"choices": [message]}).encode()
    events = new_events()
    assert events.feed(whole[:cut]) + events.feed(whole[cut:]) == []
    (event,) = events.flush()
    assert read(events, event)["choices"][0]["delta"] == {"content": "a", "tool_calls": []}


@pytest.mark.parametrize("missing", [1, 2])
def test_an_end_before_every_choice_has_ended_is_broken(missing):
    events = new_events()
    for each in CHUNKS[: len(CHUNKS) - missing]:
        events.read(json.dumps(each).encode())
    with pytest.raises(WorkerStreamError, match="finish_reason"):
        events.read(b"[DONE]")


def test_a_long_event_is_broken(monkeypatch):
    monkeypatch.setattr(stream_events, "MAX_EVENT_BYTES", 100)
    events = new_events()
    events.feed(b"data: " + b"x" * 94)
    with pytest.raises(WorkerStreamError, match="over 100 bytes"):
        events.feed(b"x")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\t{}:,é€😀'))
COUNTS = st.integers(0, 10**9)


def dumped(text, count, style, field):
    """Return an event as some server writes it."""
    names = {"prompt_tokens": 4, "total_tokens": 4 + (count or 0), "completion_tokens": count}
    delta = {"role": "assistant", "tool_calls": [], field: text}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    event = {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}
    if count is not None:
        event["usage"] = names
    if style == "orjson":
        return orjson.dumps(event)
    separators = (",", ":") if style == "tight" else None
    return json.dumps(event, separators=separators).encode()


@given(
    st.lists(st.tuples(TEXTS, COUNTS), min_size=2, max_size=8),
    st.sampled_from(["orjson", "tight", "json"]),
    st.sampled_from(["content", "reasoning"]),
    st.booleans(),
)
@example([("0", 999_999_996), ("0", 0)], "orjson", "content", True)
def test_an_event_of_a_known_form_is_read_as_any_other(contents, style, field, counted):
    """The first event teaches the form; every later one is equal to what parsing gives."""
    events = StreamEvents(AnswerShape("/v1/chat/completions", 1))
    events.read(dumped("first", 1 if counted else None, style, field))
    for text, number in contents:
        count = number if counted else None
        event = dumped(text, count, style, field)
        chunk = events.read(event)
        assert chunk.data == json.loads(event)
        fits = (count or 0) + 4 < 10**9
        pairs = b"\\ud8" in event or b"\\ud9" in event or b"\\uda" in event or b"\\udb" in event
        assert (chunk.form is not None) == (bool(text) and fits and not pairs), event
        if chunk.form is not None:
            assert (chunk.text, chunk.text_bytes) == (text, len(text.encode()))
            assert chunk.output_tokens == count


@pytest.mark.parametrize(
    "odd",
    [
        lambda event: event.replace(b"first", b"a\xffb"),
        lambda event: event.replace(b"first", b"half \\ud83d"),
        lambda event: event.replace(b"first", b"a\x01b"),
        lambda event: event.replace(b"first", b"b").replace(b'"id":"x"', b'"id":"y"'),
        lambda event: event.replace(b"null", b'"stop"'),
        lambda event: event.replace(b"first", b'a","content":"b'),
        lambda event: event + b" ",
    ],
)
def test_an_event_of_another_form_is_parsed(odd):
    events = StreamEvents(AnswerShape("/v1/chat/completions", 1))
    first = dumped("first", 1, "orjson", "content")
    events.read(first)
    try:
        assert events.read(odd(first)).form is None
    except WorkerStreamError:
        assert b"\x01" in odd(first) or b"null" not in odd(first)


def test_a_stream_whose_forms_never_repeat_is_parsed(monkeypatch):
    monkeypatch.setattr(stream_events, "MAX_FORMS", 2)
    events = StreamEvents(AnswerShape("/v1/chat/completions", 1))
    for number in range(5):
        event = dumped("a", 1, "orjson", "content").replace(b'"x"', b'"%d"' % number)
        assert events.read(event).form is None
    assert events.read(event).form is None, "it learns no more"


def test_running_counts_of_one_sample_become_those_of_all():
    """An event of a known form is no exception; a count that is not usable remains."""

    def event(sample, count):
        usage = {"prompt_tokens": 12, "completion_tokens": count, "total_tokens": 12 + count}
        return json.dumps({**chunk("a", index=sample), "usage": usage}).encode()

    events = StreamEvents(AnswerShape("/v1/chat/completions", 3), 5)
    seen = [(0, 1), (0, 2), (1, 1), (1, 2), (2, 5), (2, 9), (1, 1)]
    found = [events.read(event(*each)) for each in seen]
    assert [each.form is not None for each in found[:4]] == [False, True, False, True]
    usages = [each.data["usage"] for each in found]
    counts = [each["completion_tokens"] for each in usages]
    assert counts == [1, 2, 3, 4, 9, 9, 9]
    assert [each["total_tokens"] for each in usages] == [12 + each for each in counts]
