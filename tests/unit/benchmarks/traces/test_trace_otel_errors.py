"""Errors of span files name file, span and allowed values, and never a prompt's text."""

import gzip
import json
from contextlib import suppress

import pytest
from otel_documents import chat, exported, span, user, write_spans

from fairserve.benchmarks.traces.otel import read_otel
from fairserve.benchmarks.traces.reading import read_trace, trace_format
from fairserve.engine.simulated.traces.model import TraceError

GOOD = chat("good", 0, 1, [user("secret")], "hidden")


def rejection(path):
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert "secret" not in message
    assert "hidden" not in message
    return message.removeprefix(f"{path}:").strip()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"start_time": None},
            "start_time must be a time like .* or an integer of nanos.*, got None",
        ),
        ({"end_time": "later"}, "end_time must be a time like .*, got 'later'"),
        ({"end_time": 1.5}, "end_time must be a time like .*, got 1.5"),
        ({"end_time": True}, "end_time must be a time like .*, got True"),
        ({"start_time": -1}, "start_time must be a time like .*, got -1"),
        ({"start_time": "1969-12-31T00:00:00Z"}, "start_time must be a time"),
        ({"start_time": "0001-01-01T00:00:00+10:00"}, "start_time must be a time"),
        ({"start_time": 10**400}, "start_time must be a time"),
        (
            {"end_time": "2026-05-04T09:59:59"},
            "ends before it starts; an end at the start or later",
        ),
        ({"trace_id": 5}, "trace_id must be a text, not empty, got 5"),
        ({"parent_span_id": 5}, "parent_span_id must be a text or null, got 5"),
        ({"name": ["x"]}, r"name must be a text, got \['x'\]"),
        ({"attributes": "x"}, "attributes must be an object, or a list of key and value"),
        (
            {"attributes": [{"value": 1}]},
            "attributes must be an object, or a list of key and value",
        ),
        ({"span_id": "good"}, "the id occurs twice in trace 't'"),
        ({"parent_span_id": "bad"}, "is its own ancestor; parents must not form a loop"),
    ],
)
@pytest.mark.parametrize("kind", [chat, span])
def test_an_invalid_span_is_named(tmp_path, kind, changes, message):
    bad = kind("bad", 2, 3) | changes
    with pytest.raises(TraceError, match=f"span {bad['span_id']}: {message}"):
        read_trace(write_spans(tmp_path / "run.json", GOOD, bad))


@pytest.mark.parametrize("name", [None, "", 7])
def test_a_span_without_an_id_is_rejected(tmp_path, name):
    path = write_spans(tmp_path / "run.json", GOOD, span(name, 2, 3))
    assert rejection(path) == f"a span has span_id {name!r}; a text, not empty, is needed"


ALLOWED = "a list of messages"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"gen_ai.input.messages": "my secret is"}, f"input.messages is not JSON .*{ALLOWED}"),
        ({"gen_ai.input.messages": '[{"role": "user", "content": "secr'}, "is not JSON .Untermin"),
        ({"gen_ai.input.messages": '"secret"'}, f"gen_ai.input.messages: {ALLOWED}"),
        ({"gen_ai.input.messages": ["secret"]}, f"gen_ai.input.messages: {ALLOWED}"),
        ({"gen_ai.input.messages": '[{"content": "secret"}]'}, "a message has no role"),
        ({"gen_ai.output.text": 5}, "gen_ai.output.text must be a text"),
        (
            {"gen_ai.output.text": None, "gen_ai.output.messages": "hidden"},
            "output.messages is not",
        ),
        ({"gen_ai.output.text": None}, "needs gen_ai.output.text or gen_ai.usage.output_tokens"),
        ({"gen_ai.input.messages": None}, "needs gen_ai.input.messages or gen_ai.usage.input_tok"),
        (
            {"gen_ai.usage.input_tokens": -1},
            "usage.input_tokens must be an integer of .* 0, got -1",
        ),
        ({"gen_ai.usage.output_tokens": 1.5}, "usage.output_tokens must be an integer .*, got 1.5"),
        ({"gen_ai.usage.prompt_tokens": "9"}, "usage.prompt_tokens must be an integer .*, got '9'"),
        ({"gen_ai.usage.completion_tokens": True}, "completion_tokens must be an integer"),
        (
            {"gen_ai.request.choice.count": 0},
            "choice.count must be an integer of at least 1, got 0",
        ),
    ],
)
def test_an_invalid_call_is_named_without_its_text(tmp_path, attributes, message):
    bad = chat("bad", 2, 3, [user("secret")], "hidden", attributes)
    path = write_spans(tmp_path / "run.json", GOOD, bad)
    with pytest.raises(TraceError, match=f"span bad: .*{message}"):
        read_trace(path)
    rejection(path)


def test_files_without_spans_or_calls_are_rejected(tmp_path):
    path = write_spans(tmp_path / "run.json")
    assert rejection(path) == "holds no spans; at least one is needed"
    write_spans(path, span("a", 0, 1), chat("b", 0, 1, [user("secret")], status={"code": 2}))
    assert rejection(path).startswith(
        "no span is an answered LLM call; one is that has gen_ai.oper"
    )
    path.write_text(json.dumps(exported()))
    assert rejection(path) == "holds no spans; at least one is needed"


def test_a_document_that_ends_early_names_the_line(tmp_path):
    path = write_spans(tmp_path / "run.json", GOOD)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:8]))
    assert trace_format(path) == "otel"
    assert rejection(path).startswith("8: not JSON (")
    path.write_text("\n".join([*lines[:8], "?", *lines[8:]]))
    assert rejection(path).startswith("9: not JSON (")


def test_an_invalid_line_of_many_documents_is_named(tmp_path):
    path = tmp_path / "run.jsonl"
    good = json.dumps(exported(GOOD))
    path.write_text(f"{good}\n\n{good[:-5]}\n")
    assert rejection(path).startswith("3: not JSON (")
    path.write_text(f'{good}\n{{"calls": []}}\n')
    assert rejection(path) == "2: expected a document with spans or resourceSpans"
    path.write_text(f"{good}\n{good}\n")
    assert rejection(path) == "span good: the id occurs twice in trace 't'"


def test_a_truncated_gzip_is_rejected(tmp_path):
    path = write_spans(tmp_path / "run.json", GOOD)
    path.write_bytes(gzip.compress(path.read_bytes())[:-9])
    assert "the gzip data ends early" in rejection(path)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"spans": 5}, "1: spans must be a list of objects"),
        ({"spans": [5]}, "1: spans must be a list of objects"),
        ({"resourceSpans": {}}, "1: resourceSpans must be a list of objects"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": "x"}]}]}, "1: spans must be a list of"),
        ({"resourceSpans": [{"resource": 5}]}, "1: resource must be an object"),
        ({"resourceSpans": [{"resource": {"attributes": 5}}]}, "1: resource: attributes must be"),
        ({"spans": [{"resource_attributes": 5}]}, "1: resource_attributes must be an object"),
    ],
)
def test_a_document_of_another_structure_is_rejected(tmp_path, document, message):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    assert rejection(path).startswith(message)


def test_deep_nesting_is_rejected(tmp_path):
    path = tmp_path / "run.json"
    deep = "[" * 100_000 + "]" * 100_000
    path.write_text('{"spans":\n' + deep + "}")
    rejection(path)
    bad = chat("bad", 0, 1, None, "hidden", {"gen_ai.input.messages": deep})
    rejection(write_spans(path, bad))
    for depth in range(100, 1100, 20):
        folded = f'[{{"role": "user", "content": {"[" * depth}{"]" * depth}}}]'
        write_spans(path, chat("bad", 0, 1, None, "hidden", {"gen_ai.input.messages": folded}))
        with suppress(TraceError):  # and no other error
            assert read_trace(path).calls == 1


def test_an_empty_file_is_rejected(tmp_path):
    path = tmp_path / "run.json"
    path.touch()
    with pytest.raises(TraceError, match=r"run\.json:1: the file is empty"):
        read_otel(path)
