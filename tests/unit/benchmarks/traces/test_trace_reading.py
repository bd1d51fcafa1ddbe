"""The format of a file is recognised by its beginning; errors list the known formats."""

import gzip
import json

import pytest

from fairserve.benchmarks.traces.reading import FORMATS, read_trace, trace_format
from fairserve.engine.simulated.traces.model import TraceError

FIRST_LINES = {
    "interactions": '{"iid": "a", "bs": 16, "calls": []}',
    "mooncake": '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}',
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens",
    "vtc": "req_time_s,client,input_tokens,output_tokens",
    "servegen rates": "client,t_s,rate_rps,iat_cv,dist,shape,scale",
    "servegen lengths": '{"client": 0, "t_s": 0, "text_tokens": [], "output_tokens": []}',
    "otel": '{"trace_id": "a", "spans": []}',
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("file", ["trace", "trace.csv", "trace.jsonl.gz"])
def test_the_first_line_determines_the_format(tmp_path, name, file):
    path = tmp_path / file
    path.write_text(f"\n{FIRST_LINES[name]}\n")
    assert trace_format(path) == name
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert trace_format(path) == name


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a,b,c\n", ":1: unknown format; known are"),
        ("\n\n[1, 2]\n", ":3: unknown format; known are"),
        ('{"question": "?"}\n', ":1: unknown format; known are"),
        ("", ":1: the file is empty; known are"),
        ("\n \n", ":1: the file is empty; known are"),
    ],
)
def test_an_unknown_format_lists_the_known_ones(tmp_path, text, where):
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}{where}")
    for name, known in FORMATS.items():
        assert f"\n  {name}: {known.first_line}" in message


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "trace_id": "a",\n  "span_count": 0,\n  "spans": []\n}\n',
        '{"trace_id": "a", "spans" : [\n{}]}',
        '{"resourceSpans": []}\n{"resourceSpans": []}\n',
        '{\n"resourceSpans":\n[',
    ],
)
def test_a_document_key_determines_the_format_over_many_lines(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    assert trace_format(path) == "otel"
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert trace_format(path) == "otel"


def test_a_document_of_another_kind_is_rejected(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{\n  "questions": [],\n  "text": "spans"\n}\n')
    with pytest.raises(TraceError, match=r"t\.json:1: not JSON"):
        read_trace(path)


def test_broken_json_in_the_first_line_is_named(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"iid": "a", "calls": [\n')
    with pytest.raises(TraceError, match=r"t\.jsonl:1: not JSON"):
        read_trace(str(path))


def test_a_file_that_changes_format_names_the_line(tmp_path):
    path = tmp_path / "t.jsonl"
    call = {"id": 0, "in": 1, "out": 1}
    ours = json.dumps({"iid": "a", "bs": 16, "calls": [call]})
    path.write_text(f"{ours}\n{FIRST_LINES['mooncake']}\n")
    with pytest.raises(TraceError, match=r"t\.jsonl:2: bs must be"):
        read_trace(path)
