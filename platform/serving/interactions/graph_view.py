"""Show a run as a graph: its ended calls from the ledger, its live calls from control.

A run may have 10,000 calls. The graph as a whole is made of a few fields of each, and the details of a
call only for those of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeAlias

from pydantic import BaseModel

from fairserve.interactions.call import ServiceTier
from fairserve.interactions.tracking.run import MOST_PARENTS
from fairserve.platform.base.money import NANO, Amount
from fairserve.platform.control.messages import CallRecord, CallView
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.schemas import MAX_PAGE
from fairserve.platform.serving.interactions.graph_shape import shape_of, time_waited
from fairserve.platform.serving.interactions.repository import AnyRow
from fairserve.platform.serving.programs.schemas import ProgramNodeOut, ProgramOut

MAX_NODES = MAX_PAGE
"""Calls of a page."""

GraphRow: TypeAlias = LedgerCall | AnyRow
"""A row of the ledger, or those columns of it that a graph needs."""


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
    service_tier: ServiceTier | None
    """Null without a call."""
    worker: str | None
    begin_s: float | None
    """Seconds from the first call of the run to its arrival."""
    queue_s: float | None
    ttft_s: float | None
    duration_s: float | None
    """Seconds from its submission to its end."""
    input_tokens: int
    """Tokens of the whole prompt: system tokens and cached tokens are parts of it."""
    system_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    """Part of the output tokens."""
    error: str

    @property
    def waited_s(self) -> float:
        """Seconds that it waited so far, or before it ran."""
        return _waited_s(self.queue_s, self.duration_s, self.state)


class CriticalPathOut(BaseModel):
    """The path of calls that took longest, and its duration."""

    calls: list[str]
    """Those of its calls that are on the page."""
    length: int
    """Number of all its calls."""
    duration_s: float


class GraphOut(BaseModel):
    """A page of the calls, in the order in which they were accepted, and what holds of all of them.

    Edges lead from parent to child, of the children on the page; a parent may be on an earlier one.
    """

    id: str
    object: str = "interaction.graph"
    state: str
    user: str
    stages: int
    parallelism: int
    """Calls of the widest stage."""
    critical_path: CriticalPathOut
    span_s: float
    """Seconds from the arrival of the first call to the end of the last one so far."""
    waited_s: float
    """Seconds of them in which calls waited for a worker and none ran."""
    cost: Amount
    """Cost of its ended calls, in the deployment's currency."""
    nodes: list[NodeOut]
    edges: list[tuple[str, str]]
    total: int
    """Calls of the whole graph."""
    limit: int
    offset: int


class ShownNode(NamedTuple):
    """A call, or a node of a program without one, before it is known whether the page has it."""

    name: str
    parents: Sequence[str]
    stage: int
    begin_s: float
    waited_s: float
    duration_s: float
    shown: Callable[[str], NodeOut]
    """Return its node under an id."""


def graph_of(
    run_id: str,
    state: str,
    user: str,
    ended: Sequence[GraphRow],
    live: Iterable[CallView],
    program: ProgramOut | None = None,
    *,
    limit: int = MAX_NODES,
    offset: int = 0,
) -> GraphOut:
    """Return a page of the graph of one run. Unknown parents are omitted; the ledger precedes control.

    Of a program, what has made no call is there, too. Cost: O(calls + edges) of the run, and some
    microseconds more for each call of the page.
    """
    nodes = _calls(ended, live)
    if program is not None:
        nodes += _declared(program, {node.name for node in nodes})
    numbers: dict[str, int] = {}
    parents: list[list[int]] = []
    again: dict[str, int] = {}
    for node in nodes:
        known = [numbers[name] for name in node.parents if name in numbers]
        # A name may have been used before, in an earlier life of the run: it is the later one's.
        numbers[_free(node.name, numbers, again)] = len(parents)
        parents.append(list(dict.fromkeys(known)))
    names = list(numbers)
    shape = shape_of(parents, [node.duration_s for node in nodes])
    span_s, waited_s = time_waited(
        (node.begin_s, node.waited_s, node.duration_s) for node in nodes if node.duration_s
    )
    page = range(len(nodes))[offset : offset + limit]
    return GraphOut(
        id=run_id,
        state=state,
        user=user,
        stages=max((node.stage for node in nodes), default=0),
        parallelism=shape.parallelism,
        critical_path=CriticalPathOut(
            calls=[names[number] for number in shape.critical_path if number in page],
            length=len(shape.critical_path),
            duration_s=round(shape.duration_s, 6),
        ),
        span_s=round(span_s, 6),
        waited_s=round(waited_s, 6),
        cost=Decimal(sum(row.cost for row in ended)) / NANO,
        nodes=[nodes[number].shown(names[number]) for number in page],
        edges=[(names[parent], names[number]) for number in page for parent in parents[number]],
        total=len(nodes),
        limit=limit,
        offset=offset,
    )


def _calls(ended: Sequence[GraphRow], live: Iterable[CallView]) -> list[ShownNode]:
    known = {row.call_id for row in ended}
    found: list[tuple[float, str, GraphRow | CallRecord]] = [
        (row.accepted_at.timestamp(), row.outcome, row) for row in ended
    ]
    found += [
        (view.record.accepted_at, view.state, view.record)
        for view in live
        if view.record.call_id not in known
    ]
    first_at = min((accepted_at for accepted_at, _, _ in found), default=0.0)
    nodes = [
        ShownNode(
            name=call.name or call.call_id,
            parents=call.parents,
            stage=call.stage,
            begin_s=accepted_at - first_at,
            waited_s=_waited_s(call.queue_delay_s, call.duration_s, state),
            duration_s=call.duration_s or 0.0,
            shown=partial(_node, call, state, accepted_at - first_at),
        )
        for accepted_at, state, call in found
    ]
    return sorted(nodes, key=lambda node: (round(node.begin_s, 6), node.stage))


def _waited_s(queue_s: float | None, duration_s: float | None, state: str) -> float:
    """Return the seconds that a call waited so far, or before it ran."""
    waits = state in ("held", "queued") or queue_s is None
    return (duration_s if waits else queue_s) or 0.0


def node_of(record: CallRecord, state: str, first_at: float) -> NodeOut:
    """Return the node of a call that is live or just ended; ``first_at`` is the start of its run."""
    name = record.name or record.call_id
    return _node(record, state, record.accepted_at - first_at, name)


def _node(call: GraphRow | CallRecord, state: str, begin_s: float, name: str) -> NodeOut:
    return NodeOut(
        id=name,
        agent=call.agent,
        stage=call.stage,
        state=state,
        model=call.served_model or call.model,
        service_tier=call.service_tier,
        worker=call.worker,
        begin_s=round(begin_s, 6),
        queue_s=call.queue_delay_s,
        ttft_s=call.ttft_s,
        duration_s=call.duration_s,
        input_tokens=call.input_tokens + call.system_tokens,
        system_tokens=call.system_tokens,
        cached_tokens=call.cached_tokens,
        output_tokens=call.output_tokens,
        reasoning_tokens=call.reasoning_tokens,
        error=call.error,
    )


def _declared(program: ProgramOut, made: set[str]) -> Iterator[ShownNode]:
    """Yield the nodes of a program without a call, each after its parents."""
    names = {node.id: node.calls or [node.id] for node in program.nodes}
    for node in sorted(program.nodes, key=lambda each: each.stage):
        above = (name for parent in node.parents for name in names[parent])
        parents = list(islice(above, MOST_PARENTS))
        for name in names[node.id]:
            if name not in made:
                yield ShownNode(
                    name, parents, node.stage, 0.0, 0.0, 0.0, partial(_without_call, node)
                )


def _without_call(node: ProgramNodeOut, name: str) -> NodeOut:
    return NodeOut(
        id=name,
        agent=node.agent,
        stage=node.stage,
        state="waiting" if node.state == "running" else node.state,
        model=node.model,
        service_tier=None,
        worker=None,
        begin_s=None,
        queue_s=None,
        ttft_s=None,
        duration_s=None,
        input_tokens=0,
        system_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        reasoning_tokens=0,
        error=node.reason,
    )


def _free(name: str, taken: Container[str], again: dict[str, int]) -> str:
    """Return an unused name; ``again`` has the last number of each name, so that all cost O(all)."""
    if name not in taken:
        return name
    number = again.get(name, 2)
    while f"{name} ({number})" in taken:
        number += 1
    again[name] = number + 1
    return f"{name} ({number})"
