"""Declared programs that are too large, too deep or never to be sent, and the limits themselves."""

import string

import pytest
from programs import rejection, with_node

from fairserve.interactions.programs.program import ProgramLimits, parse_program
from fairserve.interactions.programs.program_fields import ProgramError


def chain(size):
    return [
        {"id": f"n{i}", "prompt": f"{{{{n{i - 1}.output}}}}" if i else "go"} for i in range(size)
    ]


def test_limits_are_reached_and_not_passed():
    limits = ProgramLimits(nodes=10, edges=9)
    parse_program({"model": "m", "nodes": chain(10)}, limits)
    assert rejection({"model": "m", "nodes": chain(11)}, limits) == (
        "nodes",
        "has 11 nodes; allowed: 10",
    )
    crossed = chain(10)
    crossed[9]["prompt"] += "{{n7.output}}"
    assert rejection({"model": "m", "nodes": crossed}, limits) == (
        "nodes",
        "has over 9 edges, the most allowed",
    )


def test_100_000_nodes_are_refused_unread():
    class Unread(dict):
        def __iter__(self):
            raise AssertionError("it was read")

        get = items = values = __getitem__ = __iter__

    with pytest.raises(ProgramError) as raised:
        parse_program({"model": "m", "nodes": [Unread()] * 100_000})
    assert str(raised.value) == "nodes: has 100000 nodes; allowed: 1000"


class Unsearched(str):
    """A text of which only the length is read."""

    __slots__ = ()

    def find(self, *_):
        raise AssertionError("it was parsed")

    encode = isascii = find


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", Unsearched("x" * 10_000_000)),
        ("id", Unsearched("x" * 10_000_000)),
        ("sampling", {"stop": [Unsearched("x" * 10_000)] * 1_000}),
        ("sampling", {"stop": [0] * 2_000_000}),
        ("sampling", {f"{number:07}": 0 for number in range(150_000)}),
        ("when", {"node": "a", "op": "equals", "value": Unsearched("x" * 1_000_001)}),
        ("parents", ["a"] * 1_000_001),
    ],
)
def test_10_megabytes_are_refused_by_their_size(field, value):
    plain = with_node(**{field: value})
    with pytest.raises(ProgramError) as raised:
        parse_program(plain)
    assert raised.value.path == "nodes"
    assert raised.value.message == "has over 1000000 characters, the most allowed"


def test_the_characters_of_all_nodes_count():
    limits = ProgramLimits(template_chars=1_000)
    nodes = [{"id": f"n{number}", "prompt": "x" * 100} for number in range(9)]
    assert rejection({"model": "m", "nodes": nodes}, limits)[0] == "nodes"
    parse_program({"model": "m", "nodes": nodes[:7]}, limits)


def test_deep_nesting_is_refused_without_recursion():
    deep = "x"
    for _ in range(100_000):
        deep = [deep]
    plain = with_node(sampling={"stop": deep})
    with pytest.raises(ProgramError) as raised:
        parse_program(plain)
    assert str(raised.value) == "nodes: is nested deeper than 32 levels"
    while isinstance(deep, list):  # freed step by step, too
        deep = deep.pop()


def test_many_parents_are_refused_before_they_are_looked_up():
    assert rejection(with_node(parents=["nobody"] * 10_001)) == (
        "nodes[1].parents",
        "has 10001 ids; allowed: 10000 edges in all",
    )


def test_a_text_that_could_never_be_sent_is_refused():
    limits = ProgramLimits(rendered_bytes=100)
    assert rejection(with_node(prompt="ä" * 60), limits) == (
        "nodes[1]",
        "sends 133 bytes or more; allowed: 100",
    )


def test_half_a_surrogate_pair_is_no_text():
    message = r"has half a surrogate pair, '\ud83d', which is no text"
    assert rejection(with_node(prompt="x\ud83d")) == ("nodes", message)
    assert rejection(with_node(sampling={"\ud83d": 1})) == ("nodes", message)


def test_what_is_not_json_is_refused():
    messages = [{"role": "user", "content": "x", "name": object()}]
    assert rejected_path(with_node(prompt=None, messages=messages)) == "nodes[1]"
    assert rejected_path(with_node(sampling={1: 2})) == "nodes[1].sampling"
    assert rejected_path(with_node(**{"1": 2})) == "nodes[1].1"


def rejected_path(plain):
    with pytest.raises(ProgramError) as raised:
        parse_program(plain)
    return raised.value.path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, "nodes is 0; allowed: from 1"),
        ({"output_bytes": -1}, "output_bytes is -1; allowed: from 1"),
        ({"nodes": 10, "instances": 9}, "instances is 9; allowed: from nodes, 10"),
    ],
)
def test_bad_limits(change, message):
    with pytest.raises(ValueError, match=message):
        ProgramLimits(**change)


def test_every_id_that_is_allowed_can_be_named():
    alphabet = string.ascii_letters + string.digits + "_-"
    for name in (alphabet[:64], *alphabet):
        nodes = [{"id": name, "prompt": "x"}, {"id": "reader", "prompt": f"{{{{{name}.output}}}}"}]
        assert parse_program({"model": "m", "nodes": nodes}).nodes["reader"].parents == (name,)
