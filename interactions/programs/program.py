"""A declared program: the graph of calls that an app hands over as a whole, checked and immutable.

:func:`parse_program` parses it from JSON and rejects it with the path of the error. A node's
parents are the nodes that its placeholders, ``map`` and ``when`` name, or those of an explicit
``parents``, and then the former may name any ancestor. Cheap limits come first (nodes, characters), then
ids, then fields, references and edges node by node, then the graph.

Cost: linear in the declaration, and one bit operation per edge and machine word of nodes for ancestors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.programs.call_body import BodyTemplate, parse_body, slot_path
from fairserve.interactions.programs.condition import Condition, parse_condition, read_path
from fairserve.interactions.programs.output import Path
from fairserve.interactions.programs.program_fields import (
    Fields,
    ProgramError,
    kind,
    require_bounded,
    shown,
)
from fairserve.interactions.programs.template import NODE_ID, RESERVED_IDS
from fairserve.interactions.tracking.graph import GraphCycleError, InteractionGraph

PROGRAM_FIELDS = ("model", "nodes", "result")
NODE_FIELDS = (
    "id",
    "agent",
    "model",
    "messages",
    "prompt",
    "parents",
    "sampling",
    "expected_output_tokens",
    "map",
    "when",
    "retries",
)
NOT_SAMPLING = (
    "model",
    "messages",
    "prompt",
    "stream",
    "stream_options",
    "n",
    "user",
    "metadata",
)
"""Fields of a request that the node or the platform sets."""

DEFAULT_RETRIES = 1
MAX_RETRIES = 5
MAX_EXPECTED_TOKENS = 1_000_000
MAX_AGENT_CHARS = 128
MAX_MODEL_CHARS = 256


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Bounds of a program and of its run."""

    nodes: int = 1_000
    edges: int = 10_000
    template_chars: int = 1_000_000
    """Characters of the whole declaration: texts, keys, and one for every value."""
    map_width: int = 256
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
class Node:
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

    nodes: Mapping[str, Node]
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
    program = Fields(plain, "", PROGRAM_FIELDS)
    nodes = program.list("nodes")
    if not nodes:
        raise program.wrong("nodes", "is missing" if nodes is None else "is empty")
    if len(nodes) > limits.nodes:
        raise program.wrong("nodes", f"has {len(nodes)} nodes; allowed: {limits.nodes}")
    for name in PROGRAM_FIELDS:
        require_bounded(program.plain.get(name), limits.template_chars, name)
    model = program.text("model", MAX_MODEL_CHARS)
    read = [Fields(node, f"nodes[{number}]", NODE_FIELDS) for number, node in enumerate(nodes)]
    known = _ids(read)
    parsed: dict[str, Node] = {}
    edges = 0
    for node_fields, node_id in zip(read, known, strict=True):
        node = _node(node_fields, node_id, known, model, limits)
        edges += len(node.parents)
        if edges > limits.edges:
            raise program.wrong("nodes", f"has over {limits.edges} edges, the most allowed")
        parsed[node_id] = node
    result = program.plain.get("result")
    if result is not None and (not isinstance(result, str) or result not in known):
        raise program.wrong("result", f"{shown(result)} is not a node of this program")
    checked = Program(MappingProxyType(parsed), result, limits)
    _check_graph(checked, read)
    return checked


def _ids(read: list[Fields]) -> dict[str, int]:
    """Return the position of each id."""
    known: dict[str, int] = {}
    for number, node in enumerate(read):
        node_id = node.plain.get("id")
        if node_id is None:
            raise node.wrong("id", "is missing")
        if not isinstance(node_id, str):
            raise node.wrong("id", f"must be a string, not {kind(node_id)}")
        if not NODE_ID.fullmatch(node_id):
            raise node.wrong(
                "id", f"is {shown(node_id)}; allowed: 1 to 64 letters, digits, '_' and '-'"
            )
        if node_id in RESERVED_IDS:
            raise node.wrong("id", f"is {node_id!r}, which has another meaning in templates")
        if node_id in known:
            raise node.wrong("id", f"{node_id!r} is the id of nodes[{known[node_id]}] already")
        known[node_id] = number
    return known


def _node(
    node: Fields, node_id: str, known: Mapping[str, int], model: str | None, limits: ProgramLimits
) -> Node:
    own_model = node.text("model", MAX_MODEL_CHARS) or model
    if own_model is None:
        raise node.wrong("model", "is missing, and the program names none")
    body = parse_body(node.plain, node.path)
    if body.least_bytes > limits.rendered_bytes:
        raise ProgramError(
            node.path, f"sends {body.least_bytes} bytes or more; allowed: {limits.rendered_bytes}"
        )
    over = _map(node, limits)
    when_plain = node.plain.get("when")
    when = None if when_plain is None else parse_condition(when_plain, node.at("when"))
    parsed = Node(
        node_id=node_id,
        agent=node.text("agent", MAX_AGENT_CHARS) or node_id,
        model=own_model,
        body=body,
        parents=(),
        sampling=_sampling(node),
        expected_output_tokens=node.integer("expected_output_tokens", 1, MAX_EXPECTED_TOKENS),
        map=over,
        when=when,
        retries=_or_default(node.integer("retries", 0, MAX_RETRIES)),
    )
    if over is None:
        for slot, placeholder in body.placeholders:
            if placeholder.kind != "output":
                raise ProgramError(
                    node.at(slot_path(slot)),
                    f"{shown(placeholder.written)} is for nodes with map, which this one is not",
                )
    references: dict[str, None] = {}
    for path, reference in _references(parsed, node):
        _require_other(reference, node_id, known, path)
        references[reference] = None
    explicit = _parents(node, node_id, known, limits)
    parents = tuple(references) if explicit is None else explicit
    return replace(parsed, parents=parents)


def _or_default(retries: int | None) -> int:
    return DEFAULT_RETRIES if retries is None else retries


def _map(node: Fields, limits: ProgramLimits) -> MapOver | None:
    plain = node.plain.get("map")
    if plain is None:
        return None
    over = Fields(plain, node.at("map"), ("over", "path", "limit"))
    reference = over.plain.get("over")
    if not isinstance(reference, str):
        raise over.wrong("over", f"must be the id of a node, not {kind(reference)}")
    limit = over.integer("limit", 1, limits.map_width)
    return MapOver(reference, read_path(over), limits.map_width if limit is None else limit)


def _sampling(node: Fields) -> Mapping[str, Any]:
    plain = node.plain.get("sampling")
    if plain is None:
        return MappingProxyType({})
    path = node.at("sampling")
    if not isinstance(plain, Mapping):
        raise ProgramError(path, f"must be an object, not {kind(plain)}")
    for name in plain:
        if not isinstance(name, str):
            raise ProgramError(path, f"has a key that is {kind(name)}, not a string")
        if name in NOT_SAMPLING:
            raise ProgramError(
                f"{path}.{name}", f"is not for sampling; nor are {', '.join(NOT_SAMPLING)}"
            )
    return MappingProxyType(copy.deepcopy(dict(plain)))


def _parents(
    node: Fields, node_id: str, known: Mapping[str, int], limits: ProgramLimits
) -> tuple[str, ...] | None:
    """Return the explicit parents, or None."""
    plain = node.list("parents")
    if plain is None:
        return None
    if len(plain) > limits.edges:
        raise node.wrong("parents", f"has {len(plain)} ids; allowed: {limits.edges} edges in all")
    parents: dict[str, None] = {}
    for number, parent in enumerate(plain):
        path = f"{node.at('parents')}[{number}]"
        if not isinstance(parent, str):
            raise ProgramError(path, f"must be the id of a node, not {kind(parent)}")
        _require_other(parent, node_id, known, path)
        if parent in parents:
            raise ProgramError(path, f"{parent!r} is named twice")
        parents[parent] = None
    return tuple(parents)


def _references(node: Node, at: Fields) -> Iterator[tuple[str, str]]:
    """Return the path and id of every node that this one reads."""
    for slot, placeholder in node.body.placeholders:
        if placeholder.kind == "output":
            yield at.at(slot_path(slot)), placeholder.node
    if node.map is not None:
        yield f"{at.path}.map.over", node.map.node
    if node.when is not None:
        yield f"{at.path}.when.node", node.when.node


def _require_other(reference: str, node_id: str, known: Mapping[str, int], path: str) -> None:
    if reference not in known:
        raise ProgramError(path, f"{shown(reference)} is not a node of this program")
    if reference == node_id:
        raise ProgramError(path, f"{reference!r} is the node itself")


def _check_graph(program: Program, read: list[Fields]) -> None:
    try:
        graph = program.graph
    except GraphCycleError as error:
        raise ProgramError("nodes", str(error)) from None
    for at, (node_id, node) in zip(read, program.nodes.items(), strict=True):
        if at.plain.get("parents") is not None:  # the parents are what it reads otherwise
            for path, reference in _references(node, at):
                if not graph.is_ancestor(reference, node_id):
                    raise ProgramError(
                        path, f"{reference!r} is not among the parents of {node_id!r} or theirs"
                    )
        result = program.result
        if result is not None and node_id != result and not graph.is_ancestor(node_id, result):
            raise ProgramError(at.path, f"the result {result!r} cannot be reached from {node_id!r}")
