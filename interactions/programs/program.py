"""A declared program: the graph of calls that an app hands over as a whole, checked and immutable.

:func:`parse_program` reads it (:mod:`~fairserve.interactions.programs.declared`) and rejects it with the
path of the error. A node's parents are the nodes that its placeholders, ``map`` and ``when`` name, or
those of an explicit ``parents``, and then the former may name any ancestor. Cheap limits come first
(nodes, characters), then fields, ids, references and edges node by node, then the graph.

Cost: linear in the declaration, and one bit operation per edge and machine word of nodes for ancestors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.programs.call_body import BodyTemplate, parse_body, slot_path
from fairserve.interactions.programs.condition import Condition, path_of
from fairserve.interactions.programs.declared import (
    DEFAULT_RETRIES,
    MAP_WIDTH,
    MapIn,
    NodeIn,
    ProgramIn,
)
from fairserve.interactions.programs.output import Path
from fairserve.interactions.programs.program_fields import ProgramError, require_bounded, shown
from fairserve.interactions.tracking.graph import GraphCycleError, InteractionGraph


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Bounds of a program and of its run."""

    nodes: int = 1_000
    edges: int = 10_000
    template_chars: int = 1_000_000
    """Characters of the whole declaration: texts, keys, and one for every value."""
    map_width: int = MAP_WIDTH
    """Instances of one mapped node."""
    instances: int = 5_000
    """Instances of all nodes of a run; every node has one in reserve."""
    output_bytes: int = 262_144
    """Kept of one instance."""
    run_output_bytes: int = 16_777_216
    """Kept of all instances of a run."""
    rendered_bytes: int = 1_048_576
    """Most bytes of one call's messages or prompt."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ValueError(f"{each.name} is {getattr(self, each.name)}; allowed: from 1")
        if self.instances < self.nodes:
            raise ValueError(f"instances is {self.instances}; allowed: from nodes, {self.nodes}")


@dataclass(frozen=True, slots=True)
class MapOver:
    """A node that runs once for each item of a list."""

    node: str
    """Node whose output is the list."""
    path: Path
    limit: int
    """The longest list allowed."""


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """One node: a call, or with ``map`` one for each item of a list."""

    node_id: str
    agent: str
    model: str
    body: BodyTemplate
    parents: tuple[str, ...]
    sampling: Mapping[str, Any] = field(hash=False)
    """Passed on to the call; not to be changed."""
    expected_output_tokens: int | None = None
    map: MapOver | None = None
    when: Condition | None = None
    retries: int = DEFAULT_RETRIES

    @property
    def max_output_tokens(self) -> int | None:
        """Return the output limit of its sampling, if any."""
        for name in ("max_completion_tokens", "max_tokens"):
            value = self.sampling.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None


@dataclass(frozen=True)
class Program:
    """A validated program; ``nodes`` are in the order of declaration."""

    nodes: Mapping[str, ProgramNode]
    result: str | None
    limits: ProgramLimits

    @cached_property
    def graph(self) -> InteractionGraph:
        """Return its graph, by node id."""
        return InteractionGraph(
            {node_id: node.parents for node_id, node in self.nodes.items()},
            max_nodes=self.limits.nodes,
            max_edges=self.limits.edges,
        )

    @property
    def results(self) -> tuple[str, ...]:
        """Return the nodes whose outputs are the result: the declared one, or all sinks."""
        return self.graph.sinks if self.result is None else (self.result,)

    def weights(self, profile: AppProfile) -> dict[str, float]:
        """Return the expected output tokens of one call of each node; undeclared ones from the profile.

        The instances of a mapped node run side by side, so that they weigh as much as one.
        """
        weights: dict[str, float] = {}
        for node_id, node in self.nodes.items():
            expected = node.expected_output_tokens
            stage = profile.stage(self.graph.stages[node_id])
            weight = stage.output_tokens if expected is None else float(expected)
            weights[node_id] = min(weight, float(node.max_output_tokens or weight))
        return weights


def parse_program(plain: object, limits: ProgramLimits = ProgramLimits()) -> Program:
    """Check a declared program, as ``json.loads`` gives it. Raises ProgramError."""
    if isinstance(plain, Mapping):
        _require_small(plain, limits)
    declared = ProgramIn.read(plain, "", limits)
    if declared.nodes is None:
        raise ProgramError("nodes", "is missing")
    known = _ids(declared.nodes)
    parsed: dict[str, ProgramNode] = {}
    edges = 0
    for number, each in enumerate(declared.nodes):
        node = _node(each, f"nodes[{number}]", known, declared.model, limits)
        edges += len(node.parents)
        if edges > limits.edges:
            raise ProgramError("nodes", f"has over {limits.edges} edges, the most allowed")
        parsed[node.node_id] = node
    result = declared.result
    if result is not None and result not in known:
        raise ProgramError("result", f"{shown(result)} is not a node of this program")
    checked = Program(MappingProxyType(parsed), result, limits)
    _check_graph(checked, declared.nodes)
    return checked


def _require_small(plain: Mapping[str, Any], limits: ProgramLimits) -> None:
    """Check the number of nodes and characters, before any node is read."""
    nodes = plain.get("nodes")
    if isinstance(nodes, list) and len(nodes) > limits.nodes:
        raise ProgramError("nodes", f"has {len(nodes)} nodes; allowed: {limits.nodes}")
    for name in ProgramIn.model_fields:
        require_bounded(plain.get(name), limits.template_chars, name)


def _ids(nodes: Sequence[NodeIn]) -> dict[str, int]:
    """Return the position of each id."""
    known: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if node.id in known:
            raise ProgramError(
                f"nodes[{number}].id", f"{node.id!r} is the id of nodes[{known[node.id]}] already"
            )
        known[node.id] = number
    return known


def _node(
    declared: NodeIn,
    path: str,
    known: Mapping[str, int],
    model: str | None,
    limits: ProgramLimits,
) -> ProgramNode:
    own_model = declared.model or model
    if own_model is None:
        raise ProgramError(f"{path}.model", "is missing, and the program names none")
    body = parse_body(declared.messages, declared.prompt, path)
    if body.least_bytes > limits.rendered_bytes:
        raise ProgramError(
            path, f"sends {body.least_bytes} bytes or more; allowed: {limits.rendered_bytes}"
        )
    node = ProgramNode(
        node_id=declared.id,
        agent=declared.agent or declared.id,
        model=own_model,
        body=body,
        parents=(),
        sampling=MappingProxyType(copy.deepcopy(declared.sampling or {})),
        expected_output_tokens=declared.expected_output_tokens,
        map=None if declared.map is None else _map(declared.map, limits),
        when=None if declared.when is None else declared.when.condition(),
        retries=declared.retries,
    )
    if node.map is None:
        for slot, placeholder in body.placeholders:
            if placeholder.kind != "output":
                raise ProgramError(
                    f"{path}.{slot_path(slot)}",
                    f"{shown(placeholder.written)} is for nodes with map, which this one is not",
                )
    references: dict[str, None] = {}
    for at, reference in _references(node, path):
        _require_other(reference, node.node_id, known, at)
        references[reference] = None
    if declared.parents is None:
        return replace(node, parents=tuple(references))
    return replace(node, parents=_parents(declared, f"{path}.parents", known, limits))


def _map(declared: MapIn, limits: ProgramLimits) -> MapOver:
    limit = limits.map_width if declared.limit is None else declared.limit
    return MapOver(declared.over, path_of(declared.path), limit)


def _parents(
    declared: NodeIn, path: str, known: Mapping[str, int], limits: ProgramLimits
) -> tuple[str, ...]:
    """Return the explicit parents."""
    named = declared.parents or []
    if len(named) > limits.edges:
        raise ProgramError(path, f"has {len(named)} ids; allowed: {limits.edges} edges in all")
    parents: dict[str, None] = {}
    for number, parent in enumerate(named):
        _require_other(parent, declared.id, known, f"{path}[{number}]")
        if parent in parents:
            raise ProgramError(f"{path}[{number}]", f"{parent!r} is named twice")
        parents[parent] = None
    return tuple(parents)


def _references(node: ProgramNode, path: str) -> Iterator[tuple[str, str]]:
    """Return the path and id of every node that this one reads; ``path`` is its own."""
    for slot, placeholder in node.body.placeholders:
        if placeholder.kind == "output":
            yield f"{path}.{slot_path(slot)}", placeholder.node
    if node.map is not None:
        yield f"{path}.map.over", node.map.node
    if node.when is not None:
        yield f"{path}.when.node", node.when.node


def _require_other(reference: str, node_id: str, known: Mapping[str, int], path: str) -> None:
    if reference not in known:
        raise ProgramError(path, f"{shown(reference)} is not a node of this program")
    if reference == node_id:
        raise ProgramError(path, f"{reference!r} is the node itself")


def _check_graph(program: Program, declared: Sequence[NodeIn]) -> None:
    try:
        graph = program.graph
    except GraphCycleError as error:
        raise ProgramError("nodes", str(error)) from None
    for number, each in enumerate(declared):
        node_id, path = each.id, f"nodes[{number}]"
        if each.parents is not None:  # the parents are what it reads otherwise
            for at, reference in _references(program.nodes[node_id], path):
                if not graph.is_ancestor(reference, node_id):
                    raise ProgramError(
                        at, f"{reference!r} is not among the parents of {node_id!r} or theirs"
                    )
        result = program.result
        if result is not None and node_id != result and not graph.is_ancestor(node_id, result):
            raise ProgramError(path, f"the result {result!r} cannot be reached from {node_id!r}")
