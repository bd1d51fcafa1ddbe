"""A run as a graph: its ended calls from the ledger, and those under way from control."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydantic import BaseModel

from fairserve.interactions.graph import InteractionGraph
from fairserve.interactions.run import MOST_PARENTS
from fairserve.platform.control.client_views import CallView
from fairserve.platform.control.record import CallRecord
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.programs.schemas import ProgramNodeOut, ProgramOut


class NodeOut(BaseModel):
    """A call, or a node without one. Durations are null where it did not get that far; tokens grow while
    it runs.
    """

    id: str
    agent: str | None
    stage: int
    state: str
    """``queued``, ``running``, ``completed``, ``cancelled``, ``failed`` or ``expired``; of a node
    without a call ``waiting``, ``skipped``, ``done`` (an empty list), ``failed`` or ``cancelled``."""
    model: str
    worker: str | None
    begin_s: float | None
    """When it came, from the first call of the run on."""
    queue_s: float | None
    ttft_s: float | None
    duration_s: float | None
    """From its submission to its end."""
    input_tokens: int
    """Tokens of the whole prompt: system tokens and cached tokens are parts of it."""
    system_tokens: int
    cached_tokens: int
    output_tokens: int
    error: str


class CriticalPathOut(BaseModel):
    """The path of calls that took longest, and how long."""

    calls: list[str]
    duration_s: float


class GraphOut(BaseModel):
    """Calls in the order in which they were accepted; edges from parent to child."""

    id: str
    object: str = "interaction.graph"
    state: str
    user: str
    stages: int
    parallelism: int
    """Calls of the widest stage."""
    critical_path: CriticalPathOut
    nodes: list[NodeOut]
    edges: list[tuple[str, str]]


def graph_of(
    run_id: str,
    state: str,
    user: str,
    ended: Sequence[LedgerCall],
    live: Iterable[CallView],
    program: ProgramOut | None = None,
) -> GraphOut:
    """The graph of one run. A call in both is the ledger's; parents that are not there are left out.

    Of a program, what has made no call is there, too.
    """
    known = {row.call_id for row in ended}
    under_way = [view for view in live if view.record.call_id not in known]
    first_at = min(
        [row.accepted_at.timestamp() for row in ended]
        + [view.record.accepted_at for view in under_way],
        default=0.0,
    )
    found: list[tuple[NodeOut, Sequence[str]]] = [
        (_node(row, row.outcome, row.accepted_at.timestamp() - first_at), row.parents or [])
        for row in ended
    ]
    found += [
        (node_of(view.record, view.state, first_at), view.record.parents) for view in under_way
    ]
    found.sort(key=lambda each: (each[0].begin_s, each[0].stage))
    if program is not None:
        found += _declared(program, {node.id for node, _ in found})
    parents: dict[str, list[str]] = {}
    nodes: list[NodeOut] = []
    for node, names in found:
        # A name may have been used before, in an earlier life of the run: it is the later one's.
        node.id = _free(node.id, parents)
        parents[node.id] = [name for name in names if name in parents]
        nodes.append(node)
    graph = InteractionGraph(parents, max_nodes=len(nodes), max_edges=1 << 20)
    path = graph.critical_path({node.id: node.duration_s or 0.0 for node in nodes})
    return GraphOut(
        id=run_id,
        state=state,
        user=user,
        stages=max((node.stage for node in nodes), default=0),
        parallelism=graph.parallelism,
        critical_path=CriticalPathOut(calls=list(path.nodes), duration_s=round(path.length, 6)),
        nodes=nodes,
        edges=[(parent, child) for child in graph.nodes for parent in graph.parents(child)],
    )


def node_of(record: CallRecord, state: str, first_at: float) -> NodeOut:
    """A call under way, or just ended; ``first_at`` is when its run began."""
    return _node(record, state, record.accepted_at - first_at)


def _node(call: LedgerCall | CallRecord, state: str, begin_s: float) -> NodeOut:
    return NodeOut(
        id=call.name or call.call_id,
        agent=call.agent,
        stage=call.stage,
        state=state,
        model=call.served_model or call.model,
        worker=call.worker,
        begin_s=round(begin_s, 6),
        queue_s=call.queue_delay_s,
        ttft_s=call.ttft_s,
        duration_s=call.duration_s,
        input_tokens=call.input_tokens + call.system_tokens,
        system_tokens=call.system_tokens,
        cached_tokens=call.cached_tokens,
        output_tokens=call.output_tokens,
        error=call.error,
    )


def _declared(program: ProgramOut, made: set[str]) -> Iterator[tuple[NodeOut, list[str]]]:
    """What of a program has made no call yet, or never will, each after its parents."""
    names = {node.id: node.calls or [node.id] for node in program.nodes}
    for node in sorted(program.nodes, key=lambda each: each.stage):
        parents = [name for parent in node.parents for name in names[parent]]
        for name in names[node.id]:
            if name not in made:
                yield _without_call(node, name), parents[:MOST_PARENTS]


def _without_call(node: ProgramNodeOut, name: str) -> NodeOut:
    return NodeOut(
        id=name,
        agent=node.agent,
        stage=node.stage,
        state="waiting" if node.state == "running" else node.state,
        model=node.model,
        worker=None,
        begin_s=None,
        queue_s=None,
        ttft_s=None,
        duration_s=None,
        input_tokens=0,
        system_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        error=node.reason,
    )


def _free(name: str, taken: dict[str, list[str]]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name} ({number})" in taken:
        number += 1
    return f"{name} ({number})"
