"""State of the nodes of a running program, and the same as plain JSON values for saving.

A saved state has a record for every node that is past waiting and one for every task, by id, each
complete, so that a table of nodes and one of tasks hold a run: merging the changed records into those
saved before gives the current state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from fairserve.interactions.programs.output import SKIPPED, Output, sized
from fairserve.interactions.programs.program import Program, ProgramNode

ProgramState = Literal["running", "complete", "failed", "cancelled"]
NodeState = Literal["waiting", "running", "done", "failed", "skipped", "cancelled"]
InstanceState = Literal["running", "done", "failed", "cancelled"]

SETTLED: Final = frozenset({"done", "failed", "skipped", "cancelled"})
"""States of a node that it does not leave."""


class RestoreError(ValueError):
    """The saved state is not one of this program."""


def task_id(node: str, index: int | None) -> str:
    """Return the id of an instance; unambiguous, because ids of nodes have no brackets."""
    return node if index is None else f"{node}[{index}]"


@dataclass(slots=True)
class Instance:
    """One call of a node; read-only."""

    node: str
    index: int | None
    """Number of the instance of a mapped node; None for any other."""
    state: InstanceState = "running"
    attempt: int = 0
    """Attempts so far."""
    failures: int = 0
    output: str | None = None
    reason: str = ""
    """Reason of its failure; while it runs, of the previous attempt's."""

    @property
    def task_id(self) -> str:
        """Return the id of its task."""
        return task_id(self.node, self.index)

    def to_plain(self) -> dict[str, Any]:
        """Return its record."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class NodeRun:
    """State of a node; read-only."""

    node: ProgramNode
    state: NodeState = "waiting"
    reason: str = ""
    """Reason of its failure or skip."""
    instances: list[Instance] = field(default_factory=list)
    """One, or with ``map`` one for every item; none before it is ready."""
    unsettled_parents: int = 0
    running: int = 0
    """Instances that are running."""
    output: Output = SKIPPED
    calls: tuple[str, ...] = ()
    """Tasks that represent it as a parent: its own, or those of the deepest parent that has some."""
    calls_stage: int = 0
    """Stage of the node that made them."""

    def to_plain(self) -> dict[str, Any]:
        """Return its record; the instances have their own."""
        return {"state": self.state, "reason": self.reason}

    def gather(self) -> None:
        """Make its output of those of its instances, which are all done."""
        texts = tuple(each.output for each in self.instances if each.output is not None)
        size_bytes = sum(sized(text)[1] for text in texts)
        self.output = Output(texts, size_bytes, mapped=self.node.map is not None)

    def stand_for(self, runs: Mapping[str, NodeRun], stage: int) -> None:
        """Find the tasks that its children name as their parents. Its parents have theirs."""
        self.calls = tuple(each.task_id for each in self.instances)
        self.calls_stage = stage
        if not self.calls and self.node.parents:
            deepest = max(
                (runs[each] for each in self.node.parents), key=lambda run: run.calls_stage
            )
            self.calls, self.calls_stage = deepest.calls, deepest.calls_stage


def to_plain(
    runs: Mapping[str, NodeRun],
    instances: Mapping[str, Instance],
    *,
    cancelled: bool,
    nodes: Iterable[str],
    tasks: Iterable[str],
) -> dict[str, Any]:
    """Return the records of some nodes and tasks."""
    return {
        "cancelled": cancelled,
        "nodes": {each: runs[each].to_plain() for each in nodes},
        "tasks": {each: instances[each].to_plain() for each in tasks},
    }


def runs_from_plain(program: Program, plain: Mapping[str, Any]) -> dict[str, NodeRun]:
    """Return the nodes as they were saved. Raises RestoreError."""
    runs = {node_id: NodeRun(node) for node_id, node in program.nodes.items()}
    for name, record in plain["tasks"].items():
        instance = Instance(**record)
        if instance.node not in runs or instance.task_id != name:
            raise RestoreError(f"task {name!r} is not of this program")
        runs[instance.node].instances.append(instance)
    for node_id, record in plain["nodes"].items():
        if node_id not in runs:
            raise RestoreError(f"node {node_id!r} is not of this program")
        runs[node_id].state = record["state"]
        runs[node_id].reason = record["reason"]
    for column in program.graph.columns:
        for node_id in column:
            _complete(runs, runs[node_id], program.graph.stages[node_id])
    return runs


def _complete(runs: Mapping[str, NodeRun], run: NodeRun, stage: int) -> None:
    """Derive the fields that are not saved. The parents are complete."""
    run.instances.sort(key=lambda each: each.index or 0)
    indices = [each.index for each in run.instances]
    mapped = run.node.map is not None
    if indices != (list(range(len(indices))) if mapped else [None] * min(len(indices), 1)):
        raise RestoreError(f"the tasks of node {run.node.node_id!r} are not those of this program")
    if indices and run.state in ("waiting", "skipped"):
        raise RestoreError(f"node {run.node.node_id!r} has tasks and is {run.state}")
    run.running = sum(each.state == "running" for each in run.instances)
    run.unsettled_parents = sum(
        runs[each].state not in ("done", "skipped") for each in run.node.parents
    )
    if run.state == "done":
        run.gather()
    if run.state in ("done", "skipped"):
        run.stand_for(runs, stage)
