"""Test JSON mode with the real library: allowed tokens, rejected schemas, and a worker without it."""

import json
import re
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.torch.json_mode import MASK_BUDGET_S, JsonMode, token_table
from fairserve.engine.torch.openai.fields import RequestError
from fairserve.engine.torch.output_format import OutputFormat
from fairserve.engine.torch.response_formats import (
    MAX_SCHEMA_BYTES,
    KeptSchemas,
    ResponseFormats,
)

VOCABULARY, END = 300, 256
LONG_NAME = "x" * (MAX_SCHEMA_BYTES - len("root ::= "))


@pytest.fixture(scope="module")
def mode(byte_level):
    return JsonMode(token_table(byte_level, VOCABULARY, {END}))


@pytest.fixture
async def formats(byte_level):
    formats = ResponseFormats(byte_level, VOCABULARY, {END})
    yield formats
    await formats.close()


def json_format(schema):
    return OutputFormat("response_format", "json", schema)


def tokens(mask):
    return set(np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0].tolist())


def walk(mode, schema, text):
    """Return the tokens that may follow ``text``."""
    constraint = mode.compile(json.dumps(schema)).start()
    for length in range(len(text) + 1):
        allowed = tokens(constraint.allowed(list(text[:length])))
    assert not constraint.problem
    return allowed


def test_the_mask_allows_exactly_valid_continuations(mode):
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
def test_every_object_written_by_python_is_allowed(mode, value, indent):
    text = json.dumps(value, ensure_ascii=False, indent=indent).encode()
    constraint = mode.compile('{"type":"object"}').start()
    for place, byte in enumerate(text):
        assert byte in tokens(constraint.allowed(list(text[:place])))
    assert tokens(constraint.allowed(list(text))) == {END}


def test_sequences_of_one_grammar_are_independent(mode):
    grammar = mode.compile('{"enum":["ab","cd"]}')
    one, other = grammar.start(), grammar.start()
    assert tokens(one.allowed([*b'"a'])) == {*b"b"}
    assert tokens(one.allowed([*b'"a'])) == {*b"b"}
    assert tokens(other.allowed([*b'"'])) == {*b"ac"}


def test_an_output_that_violates_the_grammar_is_an_error(mode):
    constraint = mode.compile('{"type":"boolean"}').start()
    assert tokens(constraint.allowed([*b"x"])) == set()
    assert "cannot be followed" in constraint.problem
    assert tokens(constraint.allowed([*b"xy"])) == set()


def language(grammar, longest):
    """Return all outputs of a grammar with up to ``longest`` bytes."""
    found, unfinished = set(), [()]
    while unfinished:
        output = unfinished.pop()
        constraint = grammar.start()
        for token in tokens(constraint.allowed(list(output))):
            if token == END:
                found.add(bytes(output).decode())
            elif len(output) < longest:
                unfinished.append((*output, token))
        assert not constraint.problem
    return found


@pytest.mark.parametrize("pattern", [r"[ab]{1,2}c?|x/\d", "(ab|b)*", 'a"?\\\\', "b"])
def test_a_regular_expression_allows_exactly_its_matches(mode, pattern):
    alphabet = 'abcx/0"\\'
    every = ("".join(each) for size in range(5) for each in product(alphabet, repeat=size))
    expected = {text for text in every if re.fullmatch(pattern, text)}
    found = language(mode.compile(pattern, "regex"), 4)
    assert {text for text in found if set(text) <= set(alphabet)} == expected


def test_choices_allow_exactly_themselves(mode):
    choices = ["yes", "yes please", 'a "b"\\', "line\nä", "/x/"]
    assert language(mode.compile(json.dumps(choices), "choice"), 20) == set(choices)


@pytest.mark.parametrize("grammar", ['start: "a" start? "b"', 'root ::= "a" root? "b"'])
def test_a_grammar_may_be_lark_or_gbnf(mode, grammar):
    assert language(mode.compile(grammar, "grammar"), 6) == {"ab", "aabb", "aaabbb"}


@pytest.mark.parametrize(
    ("kind", "definition", "message"),
    [
        ("regex", "(", "unclosed"),
        ("regex", "(a{999}){999}", "simplify|too"),
        ("grammar", "start: missing", "missing"),
        ("grammar", "root ::= (", "GBNF"),
        pytest.param("grammar", f"root ::= {LONG_NAME}", r"Rule 'xx+ \.\.\.$", id="long_name"),
        ("json", "{", "EOF"),
        ("choice", ["x" * MAX_SCHEMA_BYTES], str(MAX_SCHEMA_BYTES)),
    ],
)
async def test_unusable_structured_outputs_are_rejected_by_name(formats, kind, definition, message):
    wanted = OutputFormat(f"structured_outputs.{kind}", kind, definition)
    with pytest.raises(RequestError, match=message) as caught:
        await formats.grammar(wanted, "client")
    assert caught.value.param == f"structured_outputs.{kind}"


async def test_equal_texts_of_different_kinds_are_kept_apart(formats):
    wanted = [OutputFormat("structured_outputs", kind, '"a"') for kind in ("regex", "grammar")]
    assert await formats.grammar(wanted[0], "one") is await formats.grammar(wanted[0], "two")
    with pytest.raises(RequestError):
        await formats.grammar(wanted[1], "one")


def test_a_recursive_schema_is_honoured(mode):
    tree = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["kids"],
        "additionalProperties": False,
    }
    text = json.dumps({"kids": [{"kids": []}, {"kids": [{"kids": []}]}]}).encode()
    assert walk(mode, tree, text) == {END}


@pytest.mark.parametrize(
    ("costs_s", "tokens_until_it_fails"),
    [
        ([2 * MASK_BUDGET_S], 0),
        ([MASK_BUDGET_S / 3] * 9, 3),
        ([MASK_BUDGET_S / 3] + [0.0005] * 50, None),
    ],
)
def test_masks_have_a_budget_of_processor_time(mode, costs_s, tokens_until_it_fails):
    times = []
    for cost_s in costs_s:
        began_s = times[-1] if times else 0.0
        times += [began_s, began_s + cost_s]
    constraint = mode.compile('{"type":"string"}').start(iter(times).__next__)
    output = [*b'"', *b"a" * 60]
    for length in range(len(costs_s)):
        constraint.allowed(output[:length])
        if constraint.problem:
            assert "too costly" in constraint.problem
            assert length == tokens_until_it_fails
            assert tokens(constraint.allowed(output)) == set()
            return
    assert tokens_until_it_fails is None


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "text"}, "text"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "pattern": "("}, "unclosed"),
        ({"$ref": "http://localhost/schema"}, "not present"),
        ({"anyOf": []}, "empty"),
        ({"$ref": "#"}, "own schema"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}}, "own schema"),
        ({"type": "string", "pattern": "(" * 9000 + "a" + ")" * 9000}, r"\.\.\.$"),
    ],
)
async def test_unsupported_schemas_are_rejected(formats, schema, message):
    with pytest.raises(RequestError, match=message) as caught:
        await formats.grammar(json_format(schema), "client")
    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 400


async def test_the_result_of_a_schema_is_cached(formats, monkeypatch):
    schema, broken = {"enum": ["ab"]}, {"$ref": "#"}
    grammar = await formats.grammar(json_format(schema), "one")
    with pytest.raises(RequestError) as first:
        await formats.grammar(json_format(broken), "one")
    await formats.close()
    monkeypatch.setattr("fairserve.engine.torch.schema_checks.sys.executable", "/nonexistent")
    assert await formats.grammar(json_format(schema), "other") is grammar
    with pytest.raises(RequestError) as again:
        await formats.grammar(json_format(broken), "other")
    assert again.value.message == first.value.message


def test_a_client_with_many_schemas_evicts_only_its_own():
    kept = KeptSchemas(bound=3)
    for key, client in ((b"a", "quiet"), (b"b", "busy"), (b"c", "busy"), (b"d", "busy")):
        kept.put(key, client, key.decode())
    assert [kept.get(key) for key in (b"a", b"b", b"c", b"d")] == ["a", None, "c", "d"]
    kept.get(b"c")
    kept.put(b"e", "busy", "e")
    assert [kept.get(key) for key in (b"a", b"c", b"d", b"e")] == ["a", "c", None, "e"]


async def test_schemas_are_bounded(formats):
    deep = {"type": "string"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    for schema in (deep, {"enum": ["x" * MAX_SCHEMA_BYTES]}):
        with pytest.raises(RequestError, match="response_format"):
            await formats.grammar(json_format(schema), "client")
    assert await formats.grammar(None, "client") is None


async def test_without_the_library_json_mode_is_rejected_by_name(byte_level, monkeypatch):
    monkeypatch.delitem(sys.modules, "fairserve.engine.torch.json_mode")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    formats = ResponseFormats(byte_level, VOCABULARY, {END})
    with pytest.raises(RequestError, match=r"fairserve\[json\]") as caught:
        await formats.grammar(json_format({"type": "object"}), "client")
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")


async def test_json_mode_needs_an_end_token(byte_level):
    formats = ResponseFormats(byte_level, VOCABULARY, frozenset())
    with pytest.raises(RequestError, match="end token"):
        await formats.grammar(json_format({"type": "object"}), "client")
