"""JSON mode with the real library: what may follow, what is refused, and doing without it."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from fairserve.engine.torch.builtin_model import ensure_builtin_model
from fairserve.engine.torch.json_mode import JsonMode
from fairserve.engine.torch.openai_fields import RequestError
from fairserve.engine.torch.response_formats import MAX_SCHEMA_BYTES, ResponseFormats

VOCABULARY, END = 300, 256


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ensure_builtin_model())


@pytest.fixture(scope="module")
def mode(tokenizer):
    return JsonMode(tokenizer, VOCABULARY, {END})


def tokens(mask):
    return set(np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0].tolist())


def walk(mode, schema, text):
    """The tokens that may follow after ``text``."""
    constraint = mode.compile(json.dumps(schema)).start()
    for length in range(len(text) + 1):
        allowed = tokens(constraint.allowed(list(text[:length])))
    assert not constraint.problem
    return allowed


def test_what_may_follow(mode):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert walk(mode, schema, b"") == {*b"{"}
    assert walk(mode, schema, b'{"a":') == {*b"tf \r\n"}
    assert walk(mode, schema, b'{"a": ') == {*b"tf"}
    assert walk(mode, schema, b'{"a":\n   ') == {*b"tf \t"}
    assert walk(mode, schema, b'{"a":true') == {*b"} \r\n"}
    assert walk(mode, schema, b'{"a":true}') == {END}


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, JSON, max_size=3), st.sampled_from([None, 1, 2]))
def test_an_object_is_whatever_python_writes(mode, value, indent):
    text = json.dumps(value, ensure_ascii=False, indent=indent).encode()
    constraint = mode.compile('{"type":"object"}').start()
    for place, byte in enumerate(text):
        assert byte in tokens(constraint.allowed(list(text[:place])))
    assert tokens(constraint.allowed(list(text))) == {END}


def test_sequences_of_one_grammar_are_apart_and_may_be_asked_again(mode):
    grammar = mode.compile('{"enum":["ab","cd"]}')
    one, other = grammar.start(), grammar.start()
    assert tokens(one.allowed([*b'"a'])) == {*b"b"}
    assert tokens(one.allowed([*b'"a'])) == {*b"b"}
    assert tokens(other.allowed([*b'"'])) == {*b"ac"}
    assert mode.compile('{"enum":["ab","cd"]}') is grammar


def test_an_output_that_breaks_the_grammar_is_a_problem(mode):
    constraint = mode.compile('{"type":"boolean"}').start()
    assert tokens(constraint.allowed([*b"x"])) == set()
    assert "cannot be followed" in constraint.problem
    assert tokens(constraint.allowed([*b"xy"])) == set()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "text"}, "text"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "pattern": "("}, "unclosed"),
        ({"$ref": "http://localhost/schema"}, "not present"),
        ({"anyOf": []}, "empty"),
    ],
)
async def test_schemas_that_are_refused(tokenizer, schema, message):
    formats = ResponseFormats(tokenizer, VOCABULARY, {END})
    with pytest.raises(RequestError, match=message) as caught:
        await formats.grammar(schema)
    assert caught.value.param == "response_format"


async def test_schemas_have_a_bound(tokenizer):
    formats = ResponseFormats(tokenizer, VOCABULARY, {END})
    deep = {"type": "string"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    for schema in (deep, {"enum": ["x" * MAX_SCHEMA_BYTES]}):
        with pytest.raises(RequestError, match="response_format"):
            await formats.grammar(schema)
    assert await formats.grammar(None) is None


async def test_without_the_library_it_is_refused_by_name(tokenizer, monkeypatch):
    monkeypatch.delitem(sys.modules, "fairserve.engine.torch.json_mode")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    formats = ResponseFormats(tokenizer, VOCABULARY, {END})
    with pytest.raises(RequestError, match=r"fairserve\[json\]") as caught:
        await formats.grammar({"type": "object"})
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")


async def test_a_model_without_an_end_token_cannot_do_it(tokenizer):
    formats = ResponseFormats(tokenizer, VOCABULARY, frozenset())
    with pytest.raises(RequestError, match="end token"):
        await formats.grammar({"type": "object"})
