"""Nodes with a map run once for every item of a list: instances, results, bounds."""

import json

import pytest
from programs import MAPPED, ids, node, program, states

from fairserve.interactions.programs.program import ProgramLimits
from fairserve.interactions.programs.program_run import ProgramRun


def test_a_map_runs_for_every_item():
    run = ProgramRun(program(*MAPPED))
    run.start()
    tasks = run.succeeded("list", '["a", {"b": 1}]')
    assert ids(tasks) == ["each[0]", "each[1]"]
    assert [(task.node, task.index) for task in tasks] == [("each", 0), ("each", 1)]
    assert [task.body()["prompt"] for task in tasks] == [
        '0 a of ["a", {"b": 1}]',
        '1 {"b":1} of ["a", {"b": 1}]',
    ]
    assert run.succeeded("each[1]", "second") == []
    assert run.output("each") is None
    assert [each.output for each in run.nodes["each"].instances] == [None, "second"]
    (join,) = run.succeeded("each[0]", "first")
    assert join.body() == {"prompt": '["first","second"] second'}
    assert join.parents == ("each[0]", "each[1]")
    assert run.output("each") == ["first", "second"]


def test_a_map_may_be_over_a_mapped_node_or_a_field():
    run = ProgramRun(
        program(
            node("plan"),
            node("draft", "{{item}}", map={"over": "plan", "path": "todo.0"}),
            node("check", "{{item.ok}} {{item}}", map={"over": "draft"}),
            node("part", "{{item}}", map={"over": "draft", "path": "1.parts"}),
        )
    )
    run.start()
    assert ids(run.succeeded("plan", '{"todo": [["a", "b"]]}')) == ["draft[0]", "draft[1]"]
    run.succeeded("draft[0]", '{"ok": "yes"}')
    tasks = run.succeeded("draft[1]", '{"ok": false, "parts": [7]}')
    assert [(task.task_id, task.body()["prompt"]) for task in tasks] == [
        ("check[0]", 'yes {"ok": "yes"}'),
        ("check[1]", 'false {"ok": false, "parts": [7]}'),
        ("part[0]", "7"),
    ]
    assert tasks[0].parents == ("draft[0]", "draft[1]")


def test_an_empty_list_is_done_immediately_and_replaced_by_its_parents():
    run = ProgramRun(
        program(
            node("root"),
            node("list", "{{root.output}}"),
            *MAPPED[1:2],
            node("join", "{{each.output}}"),
        )
    )
    run.start()
    run.succeeded("root", "x")
    (join,) = run.succeeded("list", "[]")
    assert states(run) == {"root": "done", "list": "done", "each": "done", "join": "running"}
    assert run.output("each") == []
    assert (join.body(), join.parents) == ({"prompt": "[]"}, ("list",))


def test_a_map_over_a_skipped_list_is_skipped():
    run = ProgramRun(
        program(
            node("a"),
            node("list", when={"node": "a", "op": "empty"}),
            node("each", "{{item}} {{a.output}}", map={"over": "list"}),
        )
    )
    run.start()
    run.succeeded("a", "x")
    assert run.state == "complete"
    assert run.nodes["each"].reason == "'list', whose list it is for, was skipped"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("a, b", "map: the output of 'list' is not JSON"),
        ('{"a": 1}', "map: the output of 'list' is an object, not a JSON list"),
        ('"[1]"', "map: the output of 'list' is a text, not a JSON list"),
        ("null", "map: the output of 'list' is null, not a JSON list"),
        ("[1,2,3,4]", "map: the output of 'list' has 4 items; allowed: 3"),
        ("", "map: the output of 'list' is not JSON"),
    ],
)
def test_an_output_that_is_no_list_fails_the_node(output, reason):
    run = ProgramRun(program(*MAPPED))
    run.start()
    assert run.succeeded("list", output) == []
    assert (run.nodes["each"].state, run.nodes["each"].reason) == ("failed", reason)
    assert (run.nodes["join"].state, run.nodes["join"].reason) == ("skipped", "'each' failed")
    assert (run.state, run.done) == ("failed", True)


def test_instances_are_bounded_with_one_reserved_for_every_node():
    limits = ProgramLimits(nodes=4, instances=8)
    nodes = [
        node("list"),
        node("b", "{{item}}", map={"over": "list"}),
        node("c", "{{item}}", map={"over": "b"}),
        node("d", "{{item}}", map={"over": "c"}),
    ]
    run = ProgramRun(program(*nodes, limits=limits))
    run.start()
    assert len(run.succeeded("list", "[1,2,3]")) == 3
    for number in range(3):
        tasks = run.succeeded(f"b[{number}]", "[]")
    assert len(tasks) == 3
    for number in range(3):
        run.succeeded(f"c[{number}]", "x")
    assert run.nodes["d"].reason == (
        "map: the list has 3 items; the run has 1 of its 8 instances left"
    )
    wide = ProgramRun(program(*nodes[:2], node("end", "{{b.output}}"), limits=limits))
    wide.start()
    tasks = wide.succeeded("list", json.dumps([0] * 6))
    assert len(tasks) == 6
    for task in tasks:
        (*_, end) = wide.succeeded(task.task_id, "x") or [None]
    assert end.task_id == "end", "a map leaves every other node its call"


def test_nested_maps_are_bounded_by_the_limit():
    depth = 6
    nodes = [node("n0")] + [
        node(f"n{i}", "{{item}}", map={"over": f"n{i - 1}", "path": "0" if i > 1 else None})
        for i in range(1, depth)
    ]
    run = ProgramRun(program(*nodes, limits=ProgramLimits(nodes=10, instances=600)))
    tasks, made = run.start(), 0
    while tasks:
        made += len(tasks)
        tasks = [
            new for task in tasks for new in run.succeeded(task.task_id, json.dumps([0] * 256))
        ]
    assert run.state == "failed"
    assert made == 1 + 256 + 256
