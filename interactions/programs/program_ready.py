"""Decisions about a node whose parents have ended: whether it is skipped, its items, its request.

Pure functions of the node and of the state of the other nodes; the run acts on their results.
Conditions, lists and texts are found in that order, so that a node that is skipped never fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairserve.interactions.programs.call_body import RenderedBody
from fairserve.interactions.programs.output import JsonMemo, OutputFieldError, read, read_list
from fairserve.interactions.programs.program import ProgramNode
from fairserve.interactions.programs.program_state import NodeRun
from fairserve.interactions.programs.program_task import Filling
from fairserve.interactions.programs.template import TemplateError


def why_skipped(node: ProgramNode, runs: Mapping[str, NodeRun], memo: JsonMemo) -> str:
    """Return the reason why a node is skipped, or "" if it runs."""
    if node.parents and all(runs[each].state == "skipped" for each in node.parents):
        return "all its parents were skipped"
    when = node.when
    if when is not None and not when.holds(runs[when.node].output, memo):
        return f"its condition on {when.node!r} does not hold"
    if node.map is not None and runs[node.map.node].state == "skipped":
        return f"{node.map.node!r}, whose list it is for, was skipped"
    return ""


def items_of(node: ProgramNode, runs: Mapping[str, NodeRun], memo: JsonMemo) -> list[Any]:
    """Return the items of its list, read-only; without ``map`` one, None. Raises TemplateError."""
    if node.map is None:
        return [None]
    over = f"map: the output of {node.map.node!r}"
    try:
        value = read(runs[node.map.node].output, node.map.path, memo)
        if node.map.path:
            over += f" at {'.'.join(node.map.path)}"
        items = read_list(value, memo)
    except OutputFieldError as error:
        raise TemplateError(f"{over} {error}") from None
    if len(items) > node.map.limit:
        raise TemplateError(f"{over} has {len(items)} items; allowed: {node.map.limit}")
    return items


def render(
    node: ProgramNode,
    runs: Mapping[str, NodeRun],
    items: Sequence[Any],
    indices: Iterable[int],
    memo: JsonMemo,
    max_bytes: int,
) -> list[RenderedBody]:
    """Return the bodies of the instances at ``indices``, up to ``max_bytes`` each, or raise."""
    filling = Filling(lambda node_id: runs[node_id].output, memo)
    bodies = []
    for index in indices:
        filling.for_instance(index, items[index])
        bodies.append(node.body.resolve(filling.read_text, max_bytes))
    return bodies
