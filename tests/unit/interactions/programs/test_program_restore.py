"""Runs of programs are saved and restored: kept state, repeated tasks, and rejected states."""

import json

import pytest
from programs import DIAMOND, MAPPED, node, program

from fairserve.interactions.programs.program import ProgramLimits
from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.interactions.programs.program_state import RestoreError


def saved(run):
    return json.loads(json.dumps(run.to_plain()))


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


def test_bounds_apply_across_a_restart():
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


def test_changes_contain_only_the_changed_state():
    run = ProgramRun(program(*DIAMOND))
    assert run.changes() == {"cancelled": False, "nodes": {}, "tasks": {}}
    run.start()
    run.changes()
    run.succeeded("plan", "P")
    changes = run.changes()
    assert list(changes["nodes"]) == ["plan", "left", "right"]
    assert list(changes["tasks"]) == ["plan", "left", "right"]
    assert changes["tasks"]["plan"] == {
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
def test_the_state_of_another_program_is_rejected(nodes, message):
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
def test_a_damaged_state_is_rejected(edit, message):
    declared = program(*MAPPED)
    run = ProgramRun(declared)
    run.start()
    run.succeeded("list", "[1,2]")
    plain = saved(run)
    edit(plain)
    with pytest.raises(RestoreError, match=message):
        ProgramRun.restore(declared, plain).start()
