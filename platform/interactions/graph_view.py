"""A run as a graph: its ended calls from the ledger, and those under way from control."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from fairserve.interactions.graph import InteractionGraph
from fairserve.platform.control.port import CallView
from fairserve.platform.db.ledger import LedgerCall

MAX_CALLS = 10_000
"""Of one run, as many as the tracker lets be live."""


class NodeOut(BaseModel):
    """A call. Durations are null where it did not get that far; tokens grow while it runs."""

    id: str
    agent: str | None
    stage: int
    state: str
    """``queued``, ``running``, ``completed``, ``cancelled``, ``failed`` or ``expired``."""
    model: str
    worker: str | None
    begin_s: float
    """When it came, from the first call of the run on."""
    queue_s: float | None
    ttft_s: float | None
    duration_s: float | None
    """From its submission to its end."""
    input_tokens: int
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
    run_id: str, state: str, user: str, ended: Sequence[LedgerCall], live: Iterable[CallView]
) -> GraphOut:
    """The graph of one run. A call in both is the ledger's; parents that are not there are left out."""
    known = {row.call_id for row in ended}
    under_way = [view for view in live if view.record.call_id not in known]
    first_at = min(
        [row.accepted_at.timestamp() for row in ended]
        + [view.record.accepted_at for view in under_way],
        default=0.0,
    )
    found: list[tuple[NodeOut, Sequence[str]]] = [
        (_of_row(row, first_at), row.parents or []) for row in ended
    ]
    found += [(_of_view(view, first_at), view.record.parents) for view in under_way]
    found.sort(key=lambda each: (each[0].begin_s, each[0].stage))
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


def _free(name: str, taken: dict[str, list[str]]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name} ({number})" in taken:
        number += 1
    return f"{name} ({number})"


def _of_row(row: LedgerCall, first_at: float) -> NodeOut:
    return NodeOut(
        id=row.name or row.call_id,
        agent=row.agent,
        stage=row.stage,
        state=row.outcome,
        model=row.served_model or row.model,
        worker=row.worker,
        begin_s=round(row.accepted_at.timestamp() - first_at, 6),
        queue_s=row.queue_delay_s,
        ttft_s=row.ttft_s,
        duration_s=row.duration_s,
        input_tokens=row.input_tokens,
        system_tokens=row.system_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        error=row.error,
    )


def _of_view(view: CallView, first_at: float) -> NodeOut:
    record = view.record
    return NodeOut(
        id=record.name or record.call_id,
        agent=record.agent,
        stage=record.stage,
        state=view.state,
        model=record.served_model or record.model,
        worker=record.worker,
        begin_s=round(record.accepted_at - first_at, 6),
        queue_s=record.queue_delay_s,
        ttft_s=None,
        duration_s=record.duration_s,
        input_tokens=record.input_tokens,
        system_tokens=record.system_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        error="",
    )
