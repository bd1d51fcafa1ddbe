"""The state of programs in the API; :mod:`fairserve.interactions.programs.declared` has their fields."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from fairserve.interactions.programs.program_run import NodeOutput, ProgramRun
from fairserve.interactions.programs.program_state import NodeRun, NodeState, ProgramState
from fairserve.interactions.programs.program_task import call_name


class ProgramNodeOut(BaseModel):
    """The state of a node. ``output`` is null until there is one; for a node with ``map`` it is a list,
    with null for the instances that have not ended.
    """

    id: str
    agent: str
    model: str
    stage: int
    parents: list[str]
    state: NodeState
    reason: str
    """The reason why it failed or was skipped."""
    calls: list[str]
    """Names of its calls in the graph: the last attempt of each instance."""
    attempts: int
    output: str | list[str | None] | None


class ProgramOut(BaseModel):
    """A program: ``result`` is the output of the declared result, or those of all sinks by id."""

    state: ProgramState
    reason: str
    result: NodeOutput | dict[str, NodeOutput]
    nodes: list[ProgramNodeOut]


class TaskEvent(BaseModel):
    """A new state of an instance of a node with ``map``."""

    node: str
    index: int
    state: Literal["running", "done", "failed", "cancelled"]
    reason: str
    output: str | None


def program_out(run: ProgramRun, reason: str) -> ProgramOut:
    """Return the state of a program."""
    return ProgramOut(
        state=run.state,
        reason=reason,
        result=run.result,
        nodes=[node_out(run, node) for node in run.nodes.values()],
    )


def node_out(run: ProgramRun, node: NodeRun) -> ProgramNodeOut:
    """Return the state of a node."""
    declared = node.node
    outputs = [each.output for each in node.instances]
    mapped = declared.map is not None and node.state not in ("waiting", "skipped")
    return ProgramNodeOut(
        id=declared.node_id,
        agent=declared.agent,
        model=declared.model,
        stage=run.program.graph.stages[declared.node_id],
        parents=list(declared.parents),
        state=node.state,
        reason=node.reason,
        calls=[call_name(each.task_id, each.attempt) for each in node.instances],
        attempts=sum(each.attempt for each in node.instances),
        output=outputs if mapped else next(iter(outputs), None),
    )
