"""A character that is no Unicode costs that character; a value that cannot be written is refused."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.wire import worker_json
from fairserve.engine.wire.base import MalformedAnswerError
from fairserve.engine.wire.worker_json import MAX_DEPTH, parse_object


def parse(raw):
    return parse_object(raw, "it")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb"a\ud83db", "a\ufffdb"),
        (rb"\ude42", "\ufffd"),
        (rb"\ud83d\ud83d\ude42", "\ufffd\U0001f642"),
        (rb"\\ud83d \ud83d", "\\ud83d \ufffd"),
        (b"a\xf0\x9fb", "a\ufffdb"),
        (b"\xed\xa0\xbd", "\ufffd\ufffd\ufffd"),
    ],
)
def test_half_a_character_is_replaced(raw, text):
    assert parse(b'{"x": "%s"}' % raw) == {"x": text}


@given(st.dictionaries(st.text(), st.text() | st.characters(categories=["Cs"])))
def test_what_is_parsed_can_be_written_again(value):
    assert orjson.loads(orjson.dumps(parse(json.dumps(value).encode()))) is not None


def test_a_mark_before_the_object_is_skipped():
    assert parse(b'\xef\xbb\xbf{"x": 1}') == {"x": 1}


@pytest.mark.parametrize("raw", [b"", b"[1]", b"7", b'{"x": NaN}', b'{"x"', b"\xff", b"[" * 99_999])
def test_what_is_no_object_is_malformed(raw):
    with pytest.raises(MalformedAnswerError, match=r"^it is not"):
        parse(raw)


def test_nesting_is_bounded_at_what_can_be_written():
    def nested(levels):
        return (
            b'{"x":' * (levels - 1)
            + b'{"v": [%s]}' % b",".join([b"[]"] * 300)
            + b"}" * (levels - 1)
        )

    orjson.dumps(parse(nested(MAX_DEPTH - 2)))
    with pytest.raises(MalformedAnswerError, match=f"more than {MAX_DEPTH} levels"):
        parse(nested(MAX_DEPTH + 2))


def test_a_value_with_many_escapes_is_not_repaired(monkeypatch):
    monkeypatch.setattr(worker_json, "MAX_REPAIRED_ESCAPES", 2)
    assert parse(rb'{"x": "\n\ud83d"}')
    with pytest.raises(MalformedAnswerError):
        parse(rb'{"x": "\n\n\ud83d"}')
