"""Declared programs: what is understood, and for everything wrong the path and a readable message."""

import copy
import json

import pytest
from programs import rejection, with_node

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.programs.condition import Condition
from fairserve.interactions.programs.program import MapOver, parse_program

PLAIN = {
    "model": "small",
    "result": "write",
    "nodes": [
        {
            "id": "plan",
            "agent": "planner",
            "messages": [
                {"role": "system", "content": "Plan in JSON."},
                {"role": "user", "name": "eva", "content": [{"type": "text", "text": "A trip"}]},
            ],
            "sampling": {"temperature": 0.2, "response_format": {"type": "json_object"}},
        },
        {
            "id": "look",
            "model": "large",
            "prompt": "{{index}}: look up {{ item.place }}",
            "map": {"over": "plan", "path": "stops", "limit": 4},
            "expected_output_tokens": 300,
            "retries": 3,
        },
        {
            "id": "check",
            "prompt": "Is it safe? {{plan.output}}",
            "when": {"node": "plan", "op": "contains", "value": "desert", "path": "risk"},
        },
        {"id": "write", "prompt": "{{look.output}} {{check.output}} {{plan.output.title}}"},
    ],
}


def test_what_is_understood():
    program = parse_program(json.loads(json.dumps(PLAIN)))
    plan, look, check, write = program.nodes.values()
    assert list(program.nodes) == ["plan", "look", "check", "write"]
    assert (plan.agent, plan.model, plan.retries, plan.parents) == ("planner", "small", 1, ())
    assert plan.sampling == PLAIN["nodes"][0]["sampling"]
    assert (look.agent, look.model, look.retries) == ("look", "large", 3)
    assert look.map == MapOver("plan", ("stops",), 4)
    assert look.expected_output_tokens == 300
    assert check.when == Condition("plan", "contains", "desert", ("risk",))
    assert write.parents == ("look", "check", "plan")
    assert program.graph.columns == (("plan",), ("look", "check"), ("write",))
    assert program.results == ("write",)


def test_without_a_declared_result_every_sink_is_one():
    plain = {"model": "m", "nodes": [{"id": each, "prompt": "x"} for each in "abc"]}
    plain["nodes"][1]["parents"] = ["c"]
    assert parse_program(plain).results == ("a", "b")


def test_explicit_parents_may_come_without_a_placeholder_and_placeholders_name_any_ancestor():
    plain = {
        "model": "m",
        "nodes": [
            {"id": "a", "prompt": "go", "parents": []},
            {"id": "b", "prompt": "go", "parents": ["a"]},
            {"id": "c", "prompt": "{{a.output}}", "parents": ["b"]},
        ],
    }
    program = parse_program(plain)
    assert [node.parents for node in program.nodes.values()] == [(), ("a",), ("b",)]


def test_a_map_alone_makes_a_parent_and_its_limit_has_a_default():
    node = parse_program(with_node(prompt="{{item}}", map={"over": "a"})).nodes["b"]
    assert (node.parents, node.map) == (("a",), MapOver("a", (), 256))


def test_the_program_is_its_own():
    plain = copy.deepcopy(PLAIN)
    program = parse_program(plain)
    plain["nodes"][0]["sampling"]["response_format"]["type"] = "text"
    plain["nodes"][0]["messages"][1]["content"][0]["type"] = "image"
    assert program.nodes["plan"].sampling["response_format"] == {"type": "json_object"}
    assert program.nodes["plan"].body.fixed["messages"][1]["content"][0]["type"] == "text"
    with pytest.raises(TypeError):
        program.nodes["x"] = program.nodes["plan"]


def test_weights_are_declared_or_the_profiles_and_never_above_the_maximum():
    profile = AppProfile((StageProfile(1, 0, 50), StageProfile(1, 0, 80)))
    plain = copy.deepcopy(PLAIN)
    plain["nodes"][0]["sampling"]["max_tokens"] = 20
    plain["nodes"][2]["sampling"] = {"max_completion_tokens": 1000}
    weights = parse_program(plain).weights(profile)
    assert weights == {"plan": 20, "look": 300, "check": 80, "write": 80}


NODE_FIELDS = (
    "id, agent, model, messages, prompt, parents, sampling, expected_output_tokens, map, when, "
    "retries"
)
NO_SAMPLING = (
    "is not for sampling; nor are model, messages, prompt, stream, stream_options, n, user, "
    "metadata"
)
SYNTAX = "allowed: 1 to 64 letters, digits, '_' and '-'"


@pytest.mark.parametrize(
    ("plain", "path", "message"),
    [
        ([], "", "must be an object, not a list"),
        ({"nodes": [], "loops": 3}, "loops", "is not known here; allowed: model, nodes, result"),
        ({}, "nodes", "is missing"),
        ({"nodes": []}, "nodes", "is empty"),
        ({"nodes": {"a": {}}}, "nodes", "must be a list, not an object"),
        ({"nodes": ["a"]}, "nodes[0]", "must be an object, not a string"),
        (
            {"nodes": [{"id": "a", "prompt": "x"}], "model": 3},
            "model",
            "must be a string, not a number",
        ),
        (
            {"nodes": [{"id": "a", "prompt": "x"}]},
            "nodes[0].model",
            "is missing, and the program names none",
        ),
        (
            {"model": "m", "nodes": [{"id": "a", "prompt": "x"}], "result": "b"},
            "result",
            "'b' is not a node of this program",
        ),
        (
            {"model": "m", "nodes": [{"id": "a", "prompt": "x"}], "result": ["a"]},
            "result",
            "['a'] is not a node of this program",
        ),
    ],
)
def test_a_bad_program(plain, path, message):
    assert rejection(plain) == (path, message)


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"tools": []}, ".tools", f"is not known here; allowed: {NODE_FIELDS}"),
        ({"id": None}, ".id", "is missing"),
        ({"id": 7}, ".id", "must be a string, not a number"),
        ({"id": ""}, ".id", f"is ''; {SYNTAX}"),
        ({"id": "b c"}, ".id", f"is 'b c'; {SYNTAX}"),
        ({"id": "b.output"}, ".id", f"is 'b.output'; {SYNTAX}"),
        ({"id": "é"}, ".id", f"is 'é'; {SYNTAX}"),
        ({"id": "b" * 65}, ".id", f"is '{'b' * 39}...; {SYNTAX}"),
        ({"id": "b\n"}, ".id", f"is 'b\\n'; {SYNTAX}"),
        ({"id": "item"}, ".id", "is 'item', which has another meaning in templates"),
        ({"id": "index"}, ".id", "is 'index', which has another meaning in templates"),
        ({"id": "a"}, ".id", "'a' is the id of nodes[0] already"),
        ({"agent": ""}, ".agent", "has 0 characters; allowed: 1 to 128"),
        ({"agent": " b"}, ".agent", "is ' b'; allowed: printable, no space around it"),
        ({"agent": ["b"]}, ".agent", "must be a string, not a list"),
        ({"model": "m" * 257}, ".model", "has 257 characters; allowed: 1 to 256"),
        ({"prompt": None}, "", "needs messages or prompt"),
        (
            {"messages": [{"role": "user", "content": "x"}]},
            "",
            "has both messages and prompt; give one of them",
        ),
        ({"prompt": ""}, ".prompt", "is empty"),
        ({"prompt": ["x"]}, ".prompt", "must be a string, not a list"),
        ({"prompt": "{{b.output}}"}, ".prompt", "'b' is the node itself"),
        ({"prompt": "{{c.output}}"}, ".prompt", "'c' is not a node of this program"),
        (
            {"prompt": "{{a.output.upper()}} {{a.text}}"},
            ".prompt",
            "{{a.text}} is no placeholder; allowed: {{node.output}}, {{node.output.key}}, {{item}}, "
            "{{item.key}}, {{index}}; {{{{ for text",
        ),
        (
            {"prompt": "{{item.name}}"},
            ".prompt",
            "'{{item.name}}' is for nodes with map, which this one is not",
        ),
        (
            {"prompt": "{{index}}"},
            ".prompt",
            "'{{index}}' is for nodes with map, which this one is not",
        ),
        ({"parents": "a"}, ".parents", "must be a list, not a string"),
        ({"parents": ["a", None]}, ".parents[1]", "must be the id of a node, not null"),
        ({"parents": ["a", "c"]}, ".parents[1]", "'c' is not a node of this program"),
        ({"parents": ["b"]}, ".parents[0]", "'b' is the node itself"),
        ({"parents": ["a", "a"]}, ".parents[1]", "'a' is named twice"),
        ({"parents": []}, ".prompt", "'a' is not among the parents of 'b' or theirs"),
        (
            {"parents": [], "prompt": "x", "when": {"node": "a", "op": "empty"}},
            ".when.node",
            "'a' is not among the parents of 'b' or theirs",
        ),
        (
            {"parents": [], "prompt": "x", "map": {"over": "a"}},
            ".map.over",
            "'a' is not among the parents of 'b' or theirs",
        ),
        ({"sampling": []}, ".sampling", "must be an object, not a list"),
        ({"sampling": {"n": 2}}, ".sampling.n", NO_SAMPLING),
        ({"sampling": {"stream": True}}, ".sampling.stream", NO_SAMPLING),
        ({"sampling": {"user": "u"}}, ".sampling.user", NO_SAMPLING),
        (
            {"expected_output_tokens": 0},
            ".expected_output_tokens",
            "is 0; allowed: 1 to 1000000",
        ),
        (
            {"expected_output_tokens": 10**30},
            ".expected_output_tokens",
            "is out of range; allowed: 1 to 1000000",
        ),
        (
            {"expected_output_tokens": 1.5},
            ".expected_output_tokens",
            "must be a whole number, not a number",
        ),
        ({"retries": 6}, ".retries", "is 6; allowed: 0 to 5"),
        ({"retries": -1}, ".retries", "is -1; allowed: 0 to 5"),
        ({"retries": True}, ".retries", "must be a whole number, not true or false"),
        ({"map": "a"}, ".map", "must be an object, not a string"),
        ({"map": {}}, ".map.over", "must be the id of a node, not null"),
        ({"map": {"over": "c"}}, ".map.over", "'c' is not a node of this program"),
        ({"map": {"over": "b"}}, ".map.over", "'b' is the node itself"),
        ({"map": {"over": "a", "limit": 257}}, ".map.limit", "is 257; allowed: 1 to 256"),
        ({"map": {"over": "a", "limit": 0}}, ".map.limit", "is 0; allowed: 1 to 256"),
        (
            {"map": {"over": "a", "path": "x..y"}},
            ".map.path",
            "a path has keys and positions with single dots between, as in plan.steps.0",
        ),
        (
            {"map": {"over": "a", "depth": 2}},
            ".map.depth",
            "is not known here; allowed: over, path, limit",
        ),
        ({"when": {"node": "c", "op": "empty"}}, ".when.node", "'c' is not a node of this program"),
        ({"when": {"node": "b", "op": "empty"}}, ".when.node", "'b' is the node itself"),
        (
            {"when": {"node": "a", "op": "eval"}},
            ".when.op",
            "is 'eval'; allowed: equals, not_equals, contains, not_contains, starts_with, empty, "
            "not_empty, greater, less",
        ),
    ],
)
def test_a_bad_node(change, path, message):
    assert rejection(with_node(**change)) == (f"nodes[1]{path}", message)


@pytest.mark.parametrize(
    ("messages", "path", "message"),
    [
        ("x", "", "must be a list, not a string"),
        ([], "", "is empty"),
        (["x"], "[0]", "must be an object, not a string"),
        ([{"content": "x"}], "[0].role", "is None; it must be a string"),
        ([{"role": "user"}], "[0].content", "is missing; allowed: null for no content"),
        (
            [{"role": "user", "content": 3}],
            "[0].content",
            "must be a string, a list of parts or null, not a number",
        ),
        (
            [{"role": "user", "content": ["x"]}],
            "[0].content[0]",
            "must be an object, not a string",
        ),
        (
            [{"role": "user", "content": "x"}, {"role": "user", "content": "{{c.output}}"}],
            "[1].content",
            "'c' is not a node of this program",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "{{c.output}}"}]}],
            "[0].content[0].text",
            "'c' is not a node of this program",
        ),
    ],
)
def test_bad_messages(messages, path, message):
    assert rejection(with_node(prompt=None, messages=messages)) == (
        f"nodes[1].messages{path}",
        message,
    )


def test_messages_without_a_text_are_sent_as_they_are():
    tool = {"role": "assistant", "content": None, "tool_calls": [{"id": "{{not read}}"}]}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    node = parse_program(with_node(prompt=None, messages=[tool, image])).nodes["b"]
    assert node.body.texts == ()
    assert node.body.fixed == {"messages": [tool, image]}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (
            [
                {"id": "a", "prompt": "{{c.output}}"},
                {"id": "b", "prompt": "{{a.output}}"},
                {"id": "c", "prompt": "{{b.output}}"},
            ],
            "a -> b -> c -> a is a cycle",
        ),
        (
            [
                {"id": "root", "prompt": "x"},
                {"id": "a", "prompt": "{{root.output}}", "when": {"node": "b", "op": "empty"}},
                {"id": "b", "prompt": "{{item}}", "map": {"over": "a"}},
            ],
            "a -> b -> a is a cycle",
        ),
        (
            [
                {"id": "a", "prompt": "x", "parents": ["b"]},
                {"id": "b", "prompt": "x", "parents": ["a"]},
            ],
            "a -> b -> a is a cycle",
        ),
    ],
)
def test_cycles_are_named(plain, message):
    assert rejection({"model": "m", "nodes": plain}) == ("nodes", message)


def test_what_the_result_does_not_need_is_unreachable():
    plain = copy.deepcopy(PLAIN)
    plain["nodes"].append({"id": "extra", "prompt": "{{look.output}}"})
    assert rejection(plain) == ("nodes[4]", "the result 'write' cannot be reached from 'extra'")
    plain["result"] = "check"
    path, message = rejection(plain)
    assert (path, message) == ("nodes[1]", "the result 'check' cannot be reached from 'look'")
