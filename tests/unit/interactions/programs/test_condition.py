"""Conditions: the table of operations, absent fields, and what cannot be declared."""

import json

import pytest

from fairserve.interactions.programs.condition import OPS, Condition, WhenIn, number
from fairserve.interactions.programs.output import JsonMemo, Output
from fairserve.interactions.programs.program_fields import ProgramError


def holds(output, op, value=None, path=()):
    if isinstance(output, str):
        output = Output((output,), len(output))
    return Condition("a", op, value, path).holds(output, JsonMemo())


def mapped(*texts):
    return Output(texts, sum(map(len, texts)), mapped=True)


@pytest.mark.parametrize(
    ("output", "op", "value", "expected"),
    [
        ("  yes\n", "equals", "yes", True),
        ("yes", "equals", " yes ", True),
        ("Yes", "equals", "yes", False),
        ("yes", "not_equals", "yes", False),
        ("no", "not_equals", "yes", True),
        (" 3.0 ", "equals", 3.0, True),
        ("3.0", "equals", "3", False),
        ("three", "equals", 3.0, False),
        ("three", "not_equals", 3.0, True),
        ("true", "equals", True, True),
        ("1", "equals", True, False),
        ("it is DONE now", "contains", "DONE", True),
        ("it is done now", "contains", "DONE", False),
        ("it is done now", "not_contains", "DONE", True),
        ("DONE", "not_contains", "DONE", False),
        ("  DONE: x", "starts_with", "DONE", True),
        ("not DONE", "starts_with", "DONE", False),
        (" \n", "empty", None, True),
        ("x", "empty", None, False),
        ("[]", "empty", None, False),  # a text, not a list
        (" ", "not_empty", None, False),
        ("[]", "not_empty", None, True),
        ("10", "greater", 9.5, True),
        ("9.5", "greater", 9.5, False),
        ("-1e3", "less", 0.0, True),
        ("0", "less", 0.0, False),
        ("ten", "greater", 1.0, False),
        ("ten", "less", 1.0, False),
        ("nan", "less", 1.0, False),
        ("inf", "greater", 1.0, False),
        ("1e999", "greater", 1.0, False),
        ("1_0", "greater", 1.0, False),
        ("٣", "greater", 1.0, False),  # only the digits of ASCII
    ],
)
def test_operations(output, op, value, expected):
    assert holds(output, op, value) is expected


def test_every_operation_can_be_true_and_false():
    values = {"any": "x", "text": "x", "none": None, "number": 1.0}
    for op, (kind_of_value, _) in OPS.items():
        results = {holds(output, op, values[kind_of_value]) for output in ("x", "", "0", "2")}
        assert results == {True, False}, op


REPORT = json.dumps(
    {"score": 7, "ok": True, "none": None, "words": [], "more": {}, "list": [" a ", {}], "s": " "}
)


@pytest.mark.parametrize(
    ("path", "op", "value", "expected"),
    [
        ("score", "greater", 6.0, True),
        ("score", "equals", 7.0, True),
        ("score", "equals", "7", True),
        ("ok", "equals", True, True),
        ("ok", "equals", "true", True),
        ("none", "empty", None, True),
        ("none", "equals", "", True),
        ("words", "empty", None, True),
        ("more", "empty", None, True),
        ("s", "empty", None, True),
        ("list", "not_empty", None, True),
        ("list", "contains", '" a "', True),
        ("list.0", "equals", "a", True),
        ("absent", "empty", None, True),
        ("absent", "not_empty", None, False),
        ("absent", "not_equals", "x", True),
        ("score.deeper", "empty", None, True),
    ],
)
def test_fields(path, op, value, expected):
    assert holds(REPORT, op, value, tuple(path.split("."))) is expected


def test_a_field_of_what_is_not_json_is_absent():
    assert holds("words", "empty", path=("a",))
    assert not holds("[" * 100_000, "equals", "x", ("a",))


def test_skipped_and_mapped_outputs():
    skipped = Output((), 0)
    assert holds(skipped, "empty")
    assert holds(skipped, "equals", "")
    assert not holds(skipped, "not_empty", path=("a",))
    assert holds(mapped(), "empty")
    assert holds(mapped("", ""), "not_empty")
    assert holds(mapped("a", "b"), "equals", '["a","b"]')
    assert holds(mapped("a", "b"), "equals", "b", ("1",))


@pytest.mark.parametrize("text", ["1", "-1.5", ".5", "5.", "+2e-3"])
def test_numbers(text):
    assert number(text) == float(text)


@pytest.mark.parametrize("text", ["", ".", "e5", "0x10", "1 2", "1,5", "1" * 65, "--1"])
def test_what_is_no_number(text):
    assert number(text) is None


def condition_of(plain):
    return WhenIn.read(plain, "w").condition()


def test_a_declared_condition():
    plain = {"node": "a", "op": "greater", "value": 3, "path": "score.0"}
    assert condition_of(plain) == Condition("a", "greater", 3.0, ("score", "0"))
    assert condition_of({"node": "a", "op": "empty"}) == Condition("a", "empty")
    flag = condition_of({"node": "a", "op": "equals", "value": True})
    assert flag.value is True


ALL_OPS = "equals, not_equals, contains, not_contains, starts_with, empty, not_empty, greater, less"


@pytest.mark.parametrize(
    ("plain", "path", "message"),
    [
        ("a == b", "w", "must be an object, not a string"),
        ({"op": "empty"}, "w.node", "must be the id of a node, not null"),
        ({"node": "a"}, "w.op", f"is None; allowed: {ALL_OPS}"),
        ({"node": "a", "op": "matches", "value": "x"}, "w.op", "is 'matches'; allowed: " + ALL_OPS),
        ({"node": "a", "op": ["equals"]}, "w.op", f"is ['equals']; allowed: {ALL_OPS}"),
        (
            {"node": "a", "op": "empty", "not": True},
            "w.not",
            "is not known here; allowed: node, op, value, path",
        ),
        ({"node": "a", "op": "empty", "value": ""}, "w.value", "empty takes no value"),
        (
            {"node": "a", "op": "equals"},
            "w.value",
            "must be a string, a number, true or false, not null",
        ),
        ({"node": "a", "op": "contains", "value": 3}, "w.value", "must be a string, not a number"),
        (
            {"node": "a", "op": "starts_with", "value": ""},
            "w.value",
            "starts_with needs a string that is not empty",
        ),
        ({"node": "a", "op": "less", "value": "3"}, "w.value", "must be a number, not a string"),
        (
            {"node": "a", "op": "less", "value": True},
            "w.value",
            "must be a number, not true or false",
        ),
        (
            {"node": "a", "op": "less", "value": float("nan")},
            "w.value",
            "is out of range; allowed: -1e300 to 1e300",
        ),
        (
            {"node": "a", "op": "less", "value": 10**400},
            "w.value",
            "is out of range; allowed: -1e300 to 1e300",
        ),
        (
            {"node": "a", "op": "empty", "path": "a..b"},
            "w.path",
            "a path has keys and positions with single dots between, as in plan.steps.0",
        ),
    ],
)
def test_what_cannot_be_declared(plain, path, message):
    with pytest.raises(ProgramError) as raised:
        condition_of(plain)
    assert (raised.value.path, raised.value.message) == (path, message)
