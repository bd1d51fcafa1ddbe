"""One run of a program: what is made ready when, what is skipped, tried again, kept, and restored."""

import json

import pytest

from fairserve.interactions.profile import AppProfile, StageProfile
from fairserve.interactions.program import ProgramLimits, parse_program
from fairserve.interactions.program_run import ProgramRun, TaskError
from fairserve.interactions.program_state import RestoreError


def program(*nodes, limits=ProgramLimits(), **more):
    return parse_program({"model": "m", "nodes": list(nodes)} | more, limits)


def node(node_id, prompt="go", **more):
    return {"id": node_id, "prompt": prompt} | more


def ids(tasks):
    return [task.task_id for task in tasks]


def states(run):
    return {node_id: each.state for node_id, each in run.nodes.items()}


DIAMOND = (
    node("plan"),
    node("left", "left: {{plan.output}}"),
    node("right", "right: {{plan.output}}"),
    node("join", "{{left.output}} + {{right.output}}"),
)


def test_a_diamond():
    run = ProgramRun(program(*DIAMOND))
    (plan,) = run.start()
    assert (run.state, run.done, run.result) == ("running", False, {"join": None})
    assert states(run) == {"plan": "running"} | dict.fromkeys(("left", "right", "join"), "waiting")
    left, right = run.succeeded("plan", "PLAN")
    assert [left.body(), right.body()] == [{"prompt": "left: PLAN"}, {"prompt": "right: PLAN"}]
    assert (plan.parents, left.parents) == ((), ("plan",))
    assert run.running == ("left", "right")
    assert run.succeeded("right", "R") == []
    (join,) = run.succeeded("left", "L")
    assert join.body() == {"prompt": "L + R"}
    assert join.parents == ("left", "right")
    assert run.succeeded("join", "end") == []
    assert (run.state, run.done, run.result) == ("complete", True, {"join": "end"})
    assert run.output("plan") == "PLAN"


def test_a_task_is_a_request():
    declared = {
        "id": "a",
        "agent": "writer",
        "model": "large",
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "name": "eva", "content": [{"type": "text", "text": "{{{{T"}]},
        ],
        "sampling": {"temperature": 0.5, "stop": ["x"]},
        "expected_output_tokens": 7,
    }
    run = ProgramRun(program(declared))
    (task,) = run.start()
    assert (task.agent, task.model, task.index, task.attempt) == ("writer", "large", None, 1)
    assert task.expected_output_tokens == 7
    expected = {
        "model": "large",
        "temperature": 0.5,
        "stop": ["x"],
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "name": "eva", "content": [{"type": "text", "text": "{{T"}]},
        ],
    }
    assert task.request() == expected
    task.request()["stop"].append("y")
    task.request()["messages"][1]["content"].clear()
    assert task.request() == expected, "every request is its own"


def test_the_priority_is_the_remaining_path():
    profile = AppProfile((StageProfile(1, 0, 10), StageProfile(1, 0, 20), StageProfile(1, 0, 30)))
    nodes = (*DIAMOND[:2], DIAMOND[2] | {"expected_output_tokens": 500}, DIAMOND[3])
    run = ProgramRun(program(*nodes), profile)
    (plan,) = run.start()
    left, right = run.succeeded("plan", "x")
    assert (plan.priority, left.priority, right.priority) == (540.0, 50.0, 530.0)
    assert (left.expected_output_tokens, right.expected_output_tokens) == (None, 500)


# --- skipping -------------------------------------------------------------------------------------


def test_a_condition_that_does_not_hold_skips_and_a_skipped_output_is_empty():
    run = ProgramRun(
        program(
            node("a"),
            node("yes", when={"node": "a", "op": "equals", "value": "yes"}),
            node("no", when={"node": "a", "op": "equals", "value": "no"}),
            node("join", "<{{yes.output}}|{{no.output}}|{{no.output.field}}>"),
            node("fallback", parents=["no", "a"], when={"node": "no", "op": "empty"}),
        )
    )
    run.start()
    yes, fallback = run.succeeded("a", " yes ")
    assert ids([yes, fallback]) == ["yes", "fallback"]
    assert (run.nodes["no"].state, run.nodes["no"].reason) == (
        "skipped",
        "its condition on 'a' does not hold",
    )
    (join,) = run.succeeded("yes", "Y")
    assert join.body() == {"prompt": "<Y||>"}
    assert join.parents == ("yes", "a"), "what a skipped parent waited for stands for it"
    run.succeeded("join", "end")
    run.succeeded("fallback", "")
    assert run.state == "complete"
    assert run.result == {"join": "end", "fallback": ""}


def test_the_deepest_parent_stands_for_a_node_without_calls():
    never = {"node": "a", "op": "equals", "value": "never"}
    run = ProgramRun(
        program(
            node("a"),
            node("b", "{{a.output}}"),
            node("c", "{{b.output}}"),
            node("skipped", parents=["a", "c", "b"], when=never),
            node("root"),
            node("end", "{{skipped.output}}{{root.output}}"),
        )
    )
    run.start()
    for task in ("root", "a", "b"):
        run.succeeded(task, "x")
    (end,) = run.succeeded("c", "x")
    assert end.parents == ("c", "root")


def test_where_all_parents_were_skipped_a_node_is_skipped():
    never = {"node": "a", "op": "equals", "value": "never"}
    run = ProgramRun(
        program(
            node("a"),
            node("b", when=never),
            node("c", when=never),
            node("d", "{{b.output}}{{c.output}}"),
            node("e", "{{d.output}}"),
            node("f", "{{d.output}}{{a.output}}"),
        )
    )
    run.start()
    (f,) = run.succeeded("a", "x")
    assert f.task_id == "f"
    assert f.parents == ("a",)
    assert states(run) == (
        {"a": "done", "f": "running"} | dict.fromkeys(("b", "c", "d", "e"), "skipped")
    )
    assert run.nodes["e"].reason == "all its parents were skipped"
    run.succeeded("f", "end")
    assert (run.state, run.result) == ("complete", {"e": None, "f": "end"})


def test_a_declared_result_that_was_skipped_is_none():
    run = ProgramRun(program(node("a"), node("b", when={"node": "a", "op": "empty"}), result="b"))
    run.start()
    run.succeeded("a", "x")
    assert (run.state, run.result) == ("complete", None)


# --- map ------------------------------------------------------------------------------------------

MAPPED = (
    node("list"),
    node("each", "{{index}} {{item}} of {{list.output}}", map={"over": "list", "limit": 3}),
    node("join", "{{each.output}} {{each.output.1}}"),
)


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


def test_a_map_over_a_mapped_node_and_over_a_field():
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


def test_an_empty_list_is_done_at_once_and_its_parents_stand_for_it():
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
def test_what_is_no_list_fails_the_node(output, reason):
    run = ProgramRun(program(*MAPPED))
    run.start()
    assert run.succeeded("list", output) == []
    assert (run.nodes["each"].state, run.nodes["each"].reason) == ("failed", reason)
    assert (run.nodes["join"].state, run.nodes["join"].reason) == ("skipped", "'each' failed")
    assert (run.state, run.done) == ("failed", True)


def test_the_instances_of_a_run_are_bounded_and_every_node_has_one_in_reserve():
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


def test_deep_maps_explode_no_further_than_the_limit():
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


# --- failing --------------------------------------------------------------------------------------


def test_a_task_is_tried_again_while_retries_are_left():
    run = ProgramRun(program(node("a", retries=2), node("b", "{{a.output}}")))
    run.start()
    for attempt in (2, 3):
        (task,) = run.failed("a", "the worker is gone", again=True)
        assert (task.task_id, task.attempt, task.body()) == ("a", attempt, {"prompt": "go"})
        assert run.nodes["a"].instances[0].reason == "the worker is gone"
    assert run.failed("a", "gone again", again=True) == []
    assert (run.nodes["a"].state, run.nodes["a"].reason) == ("failed", "gone again")
    assert (run.nodes["b"].state, run.nodes["b"].reason) == ("skipped", "'a' failed")
    assert (run.state, run.result) == ("failed", {"b": None})


def test_what_cannot_be_tried_again_is_not():
    run = ProgramRun(program(node("a", retries=5)))
    run.start()
    assert run.failed("a", "the prompt is too long", again=False) == []
    assert run.state == "failed"
    run = ProgramRun(program(node("a", retries=0)))
    run.start()
    assert run.failed("a", "x" * 5_000, again=True) == []
    assert run.nodes["a"].reason == "x" * 1_000


def test_a_success_after_a_retry_leaves_no_reason():
    run = ProgramRun(program(node("a")))
    run.start()
    run.failed("a", "gone", again=True)
    run.succeeded("a", "x")
    instance = run.nodes["a"].instances[0]
    assert (instance.reason, instance.failures, instance.attempt) == ("", 1, 2)
    assert run.state == "complete"


def test_other_branches_finish_and_the_run_ends_when_nothing_runs():
    run = ProgramRun(
        program(
            node("a"),
            node("b"),
            node("below", "{{a.output}}"),
            node("both", "{{below.output}}{{b.output}}"),
            node("c", "{{b.output}}"),
        )
    )
    run.start()
    run.failed("a", "no", again=False)
    assert states(run) == {
        "a": "failed",
        "b": "running",
        "below": "skipped",
        "both": "skipped",
        "c": "waiting",
    }
    assert run.nodes["both"].reason == "'a' failed"
    assert (run.state, run.done) == ("running", False)
    (task,) = run.succeeded("b", "B")
    assert (task.task_id, run.done) == ("c", False)
    run.succeeded("c", "C")
    assert (run.state, run.result) == ("failed", {"both": None, "c": "C"})


def test_a_failed_instance_fails_its_node_and_the_others_end():
    run = ProgramRun(program(*MAPPED))
    run.start()
    run.succeeded("list", "[1,2,3]")
    assert ids(run.failed("each[1]", "odd", again=True)) == ["each[1]"]
    run.failed("each[1]", "still odd", again=True)
    assert run.nodes["each"].reason == "each[1]: still odd"
    assert (run.nodes["join"].state, run.done) == ("skipped", False)
    assert run.failed("each[2]", "not tried again", again=True) == []
    assert run.nodes["each"].reason == "each[1]: still odd"
    assert run.succeeded("each[0]", "kept") == []
    assert [each.state for each in run.nodes["each"].instances] == ["done", "failed", "failed"]
    assert run.nodes["each"].instances[0].output == "kept"
    assert (run.state, run.output("each")) == ("failed", None)


def test_a_text_that_cannot_be_rendered_fails_the_node_without_a_call():
    run = ProgramRun(program(node("a"), node("b", "{{a.output.x}}", retries=5)))
    run.start()
    assert run.succeeded("a", "{}") == []
    assert run.nodes["b"].reason == "prompt: {{a.output.x}}: the output of 'a' has no field x"
    assert (run.nodes["b"].instances, run.state) == ([], "failed")


def test_one_item_that_cannot_be_rendered_fails_the_node():
    run = ProgramRun(program(node("a"), node("b", "{{item.x}}", map={"over": "a"})))
    run.start()
    assert run.succeeded("a", '[{"x": 1}, {}]') == []
    assert run.nodes["b"].reason == "prompt: {{item.x}}: the item has no field x"


def test_what_is_sent_is_bounded():
    limits = ProgramLimits(rendered_bytes=50)
    message = [{"role": "user", "content": "{{a.output}}"}]
    nodes = (node("a"), {"id": "b", "messages": message}, node("c", "{{a.output}}"))
    run = ProgramRun(program(*nodes, limits=limits))
    run.start()
    assert ids(run.succeeded("a", "x" * 20)) == ["c"]
    assert run.nodes["b"].reason == (
        "messages[0].content: {{a.output}} has 20 bytes; 7 of the bytes allowed are left"
    )


def test_all_texts_of_a_call_are_bounded_together():
    limits = ProgramLimits(rendered_bytes=100)
    twice = [{"role": "user", "content": "{{a.output}}"}] * 2
    run = ProgramRun(program(node("a"), {"id": "b", "messages": twice}, limits=limits))
    run.start()
    run.succeeded("a", "x" * 20)
    assert run.nodes["b"].reason == (
        "messages[1].content: {{a.output}} has 20 bytes; 8 of the bytes allowed are left"
    )


def test_outputs_are_bounded():
    limits = ProgramLimits(output_bytes=10, run_output_bytes=15)
    nodes = [node("a", retries=5), node("b", retries=5), node("c")]
    run = ProgramRun(program(*nodes, limits=limits))
    run.start()
    assert run.succeeded("a", "ä" * 5) == []
    assert run.succeeded("b", "ä" * 5 + "x") == []
    assert run.nodes["b"].reason == "the output has 11 bytes; allowed: 10"
    run.succeeded("c", "123456")
    assert run.nodes["c"].reason == "the outputs of the run are over 15 bytes with this one"
    assert run.result == {"a": "ä" * 5, "b": None, "c": None}


def test_an_output_can_always_be_kept_as_utf_8():
    run = ProgramRun(program(node("a"), node("b", "{{a.output}}")))
    run.start()
    (task,) = run.succeeded("a", "x\ud83d")
    assert (run.output("a"), task.body()) == ("x\ufffd", {"prompt": "x\ufffd"})


# --- events that come twice, or for nothing -------------------------------------------------------


def test_what_has_ended_ends_once():
    run = ProgramRun(program(*DIAMOND))
    run.start()
    run.succeeded("plan", "first")
    for _ in range(2):
        assert run.succeeded("plan", "second") == []
        assert run.failed("plan", "late", again=True) == []
    assert run.output("plan") == "first"
    assert run.nodes["plan"].state == "done"


def test_events_for_nothing_are_refused():
    run = ProgramRun(program(*MAPPED))
    with pytest.raises(TaskError, match="has not been started"):
        run.succeeded("list", "[]")
    run.start()
    with pytest.raises(RuntimeError, match="has been started"):
        run.start()
    for task in ("join", "each[0]", "list[0]", "nobody"):
        with pytest.raises(TaskError, match="there is no task"):
            run.failed(task, "x", again=True)


def test_cancel():
    run = ProgramRun(program(node("root"), *MAPPED, node("other", "{{root.output}}")))
    run.start()
    run.succeeded("root", "x")
    run.succeeded("list", "[1,2]")
    run.succeeded("each[0]", "kept")
    assert run.cancel() == ["each[1]", "other"]
    assert (run.state, run.done, run.running) == ("cancelled", True, ())
    assert states(run) == {
        "root": "done",
        "list": "done",
        "each": "cancelled",
        "join": "cancelled",
        "other": "cancelled",
    }
    assert run.nodes["each"].instances[0].output == "kept"
    assert run.succeeded("other", "late") == []
    assert run.failed("each[1]", "stopped", again=True) == []
    assert (run.cancel(), run.result) == ([], {"join": None, "other": None})


def test_what_is_done_is_not_cancelled():
    run = ProgramRun(program(node("a")))
    run.start()
    run.succeeded("a", "x")
    assert (run.cancel(), run.state) == ([], "complete")


# --- saved and restored ---------------------------------------------------------------------------


def saved(run):
    return json.loads(json.dumps(run.to_plain()))


def test_what_has_ended_is_not_run_again():
    declared = program(*MAPPED, node("beside"))
    run = ProgramRun(declared)
    run.start()
    run.succeeded("list", '["a","b"]')
    run.failed("each[1]", "once", again=True)
    run.succeeded("each[0]", "A")
    restored = ProgramRun.restore(declared, saved(run))
    assert restored.running == ()
    tasks = restored.start()
    assert ids(tasks) == ["each[1]", "beside"]
    assert [task.attempt for task in tasks] == [3, 2]
    assert tasks[0].body() == {"prompt": '1 b of ["a","b"]'}
    assert tasks[0].parents == ("list",)
    (join,) = restored.succeeded("each[1]", "B")
    assert join.body() == {"prompt": '["A","B"] B'}


def test_a_restart_uses_up_no_retry():
    declared = program(node("a", retries=1))
    run = ProgramRun(declared)
    run.start()
    for attempt in range(2, 6):
        run = ProgramRun.restore(declared, saved(run))
        (task,) = run.start()
        assert task.attempt == attempt
    (task,) = run.failed("a", "x", again=True)
    assert task.attempt == 6
    run = ProgramRun.restore(declared, saved(run))
    run.start()
    assert run.failed("a", "x", again=True) == [], "but what was used up stays so"


def test_ends_are_restored():
    declared = program(*DIAMOND)
    cancelled, failed, complete = (ProgramRun(declared) for _ in range(3))
    for run in (cancelled, failed, complete):
        run.start()
    cancelled.cancel()
    failed.failed("plan", "no", again=False)
    for task in ("plan", "left", "right", "join"):
        complete.succeeded(task, task.upper())
    for run in (cancelled, failed, complete):
        restored = ProgramRun.restore(declared, saved(run))
        assert restored.start() == []
        assert (restored.state, restored.result) == (run.state, run.result)
        assert saved(restored) == saved(run)


def test_bounds_hold_over_a_restart():
    limits = ProgramLimits(nodes=3, instances=5, output_bytes=10, run_output_bytes=15)
    nodes = [
        node("list"),
        node("b", "{{item}}", map={"over": "list"}),
        node("c", "{{item}}", map={"over": "b"}),
    ]
    declared = program(*nodes, limits=limits)
    run = ProgramRun(declared)
    run.start()
    run.succeeded("list", "[1,2,3]")
    run = ProgramRun.restore(declared, saved(run))
    run.start()
    run.succeeded("b[0]", "12345678")
    run = ProgramRun.restore(declared, saved(run))
    run.start()
    run.succeeded("b[1]", "")
    run.succeeded("b[2]", "1")
    assert run.nodes["b"].reason == "b[2]: the outputs of the run are over 15 bytes with this one"
    narrow = ProgramRun(declared)
    narrow.start()
    narrow.succeeded("list", "[1,2,3]")
    narrow = ProgramRun.restore(declared, saved(narrow))
    narrow.start()
    for number in range(3):
        narrow.succeeded(f"b[{number}]", "")
    assert narrow.nodes["c"].reason.endswith("the run has 1 of its 5 instances left")


def test_changes_are_what_changed():
    run = ProgramRun(program(*DIAMOND))
    assert run.changes() == {"cancelled": False, "nodes": {}, "tasks": {}}
    run.start()
    run.changes()
    run.succeeded("plan", "P")
    told = run.changes()
    assert list(told["nodes"]) == ["plan", "left", "right"]
    assert list(told["tasks"]) == ["plan", "left", "right"]
    assert told["tasks"]["plan"] == {
        "node": "plan",
        "index": None,
        "state": "done",
        "attempt": 1,
        "failures": 0,
        "output": "P",
        "reason": "",
    }
    run.failed("left", "x", again=True)
    assert list(run.changes()["tasks"]) == ["left"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("x")], "task 'plan' is not of this program"),
        ([node("plan", "{{item}}", map={"over": "a"}), node("a")], "are not those of this program"),
    ],
)
def test_the_state_of_another_program_is_refused(nodes, message):
    run = ProgramRun(program(*DIAMOND))
    run.start()
    with pytest.raises(RestoreError, match=message):
        ProgramRun.restore(program(*nodes), saved(run))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda plain: plain["nodes"].update(x={"state": "done", "reason": ""}), "node 'x'"),
        (lambda plain: plain["tasks"].pop("each[0]"), "tasks of node 'each'"),
        (lambda plain: plain["nodes"].pop("each"), "has tasks and is waiting"),
        (lambda plain: plain["tasks"]["list"].update(output="[1]"), "list of another length"),
        (lambda plain: plain["tasks"]["list"].update(output="x"), "was rendered before"),
    ],
)
def test_a_damaged_state_is_refused(edit, message):
    declared = program(*MAPPED)
    run = ProgramRun(declared)
    run.start()
    run.succeeded("list", "[1,2]")
    plain = saved(run)
    edit(plain)
    with pytest.raises(RestoreError, match=message):
        ProgramRun.restore(declared, plain).start()
