"""Events for the followers of a program: its nodes, the instances of mapped ones, and its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.platform.serving.programs.schemas import (
    ProgramNodeOut,
    ProgramOut,
    TaskEvent,
    node_out,
)

ProgramEvent = ProgramNodeOut | TaskEvent | ProgramOut


def events_of(run: ProgramRun, changes: Mapping[str, Any]) -> Iterator[ProgramEvent]:
    """Yield the events of some changes of a run: instances first, then nodes.

    A node with ``map`` is sent only when its own state changes, because it brings all its outputs.
    """
    nodes = dict.fromkeys(changes["nodes"])
    for record in changes["tasks"].values():
        if record["index"] is None:
            nodes[record["node"]] = None
        else:
            yield TaskEvent.model_validate(
                {name: record[name] for name in ("node", "index", "state", "reason", "output")}
            )
    for node_id in nodes:
        yield node_out(run, run.nodes[node_id])
