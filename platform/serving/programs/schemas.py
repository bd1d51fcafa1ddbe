"""Bodies of programs in the API.

The models of declarations describe the API only: :mod:`fairserve.interactions.programs.program`
parses and checks a declaration, and names the path of an error.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from fairserve.interactions.programs.condition import OPS
from fairserve.interactions.programs.program import (
    DEFAULT_RETRIES,
    MAX_EXPECTED_TOKENS,
    MAX_RETRIES,
)
from fairserve.interactions.programs.program_run import NodeOutput, ProgramRun
from fairserve.interactions.programs.program_state import NodeRun, NodeState, ProgramState
from fairserve.interactions.programs.program_task import call_name
from fairserve.platform.db.schemas import Strict


class MapIn(Strict):
    """The node runs once for every item of a list."""

    over: str = Field(description="The node whose output is the list.")
    path: str | None = Field(None, description="Path in that output, such as plan.steps.")
    limit: int | None = Field(None, ge=1, description="The longest list allowed.")


class WhenIn(Strict):
    """The node runs only if this holds."""

    node: str = Field(description="The node whose output is tested.")
    op: str = Field(json_schema_extra={"enum": list(OPS)})
    value: str | float | bool | None = None
    path: str | None = Field(None, description="Path in that output.")


class NodeIn(Strict):
    """One node: a call, or with ``map`` one for every item of a list."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    agent: str | None = Field(None, description="Agent that makes the call; by default the id.")
    model: str | None = None
    messages: list[dict[str, Any]] | None = Field(
        None, description="Chat messages; texts may hold {{node.output}}."
    )
    prompt: str | None = Field(None, description="Instead of messages.")
    parents: list[str] | None = Field(
        None, description="Nodes that end before; by default those that the node names elsewhere."
    )
    sampling: dict[str, Any] | None = Field(None, description="Further fields of the request.")
    expected_output_tokens: int | None = Field(None, ge=1, le=MAX_EXPECTED_TOKENS)
    map: MapIn | None = None
    when: WhenIn | None = None
    retries: int = Field(DEFAULT_RETRIES, ge=0, le=MAX_RETRIES)


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
