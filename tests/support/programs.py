"""Small declared programs for tests, to make, to run and to reject."""

import copy

import pytest

from fairserve.interactions.programs.program import ProgramLimits, parse_program
from fairserve.interactions.programs.program_fields import ProgramError


def rejection(plain, limits=ProgramLimits()):
    """Return the path and the message of a program's rejection, and check it is unchanged."""
    before = copy.deepcopy(plain)
    with pytest.raises(ProgramError) as raised:
        parse_program(plain, limits)
    assert plain == before
    error = raised.value
    assert str(error) == (f"{error.path}: {error.message}" if error.path else error.message)
    assert len(str(error)) < 400
    return error.path, error.message


def with_node(**change):
    """Return the program of a root ``a`` and a node ``b`` with changes; None removes a field."""
    node = {"id": "b", "prompt": "{{a.output}}"} | change
    node = {name: value for name, value in node.items() if value is not None}
    return {"model": "m", "nodes": [{"id": "a", "prompt": "go"}, node]}


def program(*nodes, limits=ProgramLimits(), **more):
    """Return a parsed program of the model ``m``; ``more`` are fields beside its nodes."""
    return parse_program({"model": "m", "nodes": list(nodes)} | more, limits)


def node(node_id, prompt="go", **more):
    return {"id": node_id, "prompt": prompt} | more


def ids(tasks):
    return [task.task_id for task in tasks]


def states(run):
    """Return the state of every node, by its id."""
    return {node_id: each.state for node_id, each in run.nodes.items()}


DIAMOND = (
    node("plan"),
    node("left", "left: {{plan.output}}"),
    node("right", "right: {{plan.output}}"),
    node("join", "{{left.output}} + {{right.output}}"),
)

MAPPED = (
    node("list"),
    node("each", "{{index}} {{item}} of {{list.output}}", map={"over": "list", "limit": 3}),
    node("join", "{{each.output}} {{each.output.1}}"),
)
