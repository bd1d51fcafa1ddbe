"""Test one run of a program: ready tasks, skipped nodes, retries, and its end."""

import pytest
from programs import DIAMOND, MAPPED, ids, node, program, states

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.programs.program import ProgramLimits
from fairserve.interactions.programs.program_run import ProgramRun, TaskError
from fairserve.interactions.programs.program_task import call_name


def test_a_task_becomes_a_request():
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


def test_a_false_condition_skips_and_a_skipped_output_is_empty():
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


def test_the_deepest_parent_replaces_a_node_without_calls():
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


def test_a_node_with_only_skipped_parents_is_skipped():
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


def test_a_skipped_result_is_none():
    run = ProgramRun(program(node("a"), node("b", when={"node": "a", "op": "empty"}), result="b"))
    run.start()
    run.succeeded("a", "x")
    assert (run.state, run.result) == ("complete", None)


# --- failing --------------------------------------------------------------------------------------


def test_a_task_is_retried_while_retries_are_left():
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


def test_a_call_has_the_number_of_its_attempt_from_the_second():
    assert [call_name("a[1]", attempt) for attempt in (1, 2)] == ["a[1]", "a[1]~2"]


def test_a_final_failure_is_not_retried():
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


def test_other_branches_finish_after_a_failure():
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


def test_a_failed_instance_fails_its_node_after_the_others_end():
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


def test_sent_texts_are_bounded():
    limits = ProgramLimits(rendered_bytes=50)
    message = [{"role": "user", "content": "{{a.output}}"}]
    nodes = (node("a"), {"id": "b", "messages": message}, node("c", "{{a.output}}"))
    run = ProgramRun(program(*nodes, limits=limits))
    run.start()
    assert ids(run.succeeded("a", "x" * 20)) == ["c"]
    assert run.nodes["b"].reason == (
        "messages[0].content: {{a.output}} has 20 bytes; 7 of the bytes allowed are left"
    )


def test_texts_of_a_call_are_bounded_in_total():
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


def test_an_output_can_always_be_stored_as_utf_8():
    run = ProgramRun(program(node("a"), node("b", "{{a.output}}")))
    run.start()
    (task,) = run.succeeded("a", "x\ud83d")
    assert (run.output("a"), task.body()) == ("x\ufffd", {"prompt": "x\ufffd"})


# --- repeated and unknown events ------------------------------------------------------------------


def test_a_task_ends_once():
    run = ProgramRun(program(*DIAMOND))
    run.start()
    run.succeeded("plan", "first")
    for _ in range(2):
        assert run.succeeded("plan", "second") == []
        assert run.failed("plan", "late", again=True) == []
    assert run.output("plan") == "first"
    assert run.nodes["plan"].state == "done"


def test_events_of_unknown_tasks_are_rejected():
    run = ProgramRun(program(*MAPPED))
    with pytest.raises(TaskError, match="has not been started"):
        run.succeeded("list", "[]")
    run.start()
    with pytest.raises(RuntimeError, match="has been started"):
        run.start()
    for task in ("join", "each[0]", "list[0]", "nobody"):
        with pytest.raises(TaskError, match="there is no task"):
            run.failed(task, "x", again=True)


def test_cancelling_stops_the_run():
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


def test_finished_nodes_are_not_cancelled():
    run = ProgramRun(program(node("a")))
    run.start()
    run.succeeded("a", "x")
    assert (run.cancel(), run.state) == ([], "complete")
