"""Graph of a declared interaction: validation, stages, width and critical path.

A thin wrapper over :class:`networkx.DiGraph` for graphs that are known as a whole: for validation,
for priorities within a run (ALGORITHMS section 3: prefer the longest remaining path) and for views.
Live interactions grow call by call and belong to the tracker. As there, a stage is 1 + the longest
path from a root.

Cost: linear in nodes and edges, without recursion. :meth:`InteractionGraph.is_ancestor` allocates
one bit per pair of nodes on first use (5,000 nodes: 3 MB).

Weakness: ``parallelism`` is the width of the widest stage. Nodes of different stages may run at
once, too, so it is a lower bound of the widest antichain, which would require a matching.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

SHOWN_NODES = 12
"""Maximum nodes of a cycle named in a message; longer ones show the first and last nodes."""


class GraphError(ValueError):
    """The graph cannot be used; ``node`` is the position of the error."""

    def __init__(self, node: str, message: str) -> None:
        super().__init__(message)
        self.node = node


class UnknownNodeError(GraphError):
    """A node names a parent that does not exist."""

    def __init__(self, node: str, parent: str) -> None:
        super().__init__(node, f"{parent!r}, a parent of {node!r}, is not a node of this graph")
        self.parent = parent


class SelfReferenceError(GraphError):
    """A node is its own parent."""

    def __init__(self, node: str) -> None:
        super().__init__(node, f"{node!r} is its own parent")


class GraphCycleError(GraphError):
    """Some nodes depend on each other; ``cycle`` contains each of them once, parents first."""

    def __init__(self, cycle: Sequence[str]) -> None:
        names = [*cycle, cycle[0]]
        if len(names) > SHOWN_NODES + 1:
            half = SHOWN_NODES // 2
            names = [*names[:half], f"... {len(names) - 2 * half} more ...", *names[-half:]]
        super().__init__(cycle[0], f"{' -> '.join(names)} is a cycle")
        self.cycle = tuple(cycle)


class GraphTooLargeError(GraphError):
    """The graph has more nodes or edges than allowed."""

    def __init__(self, what: str, count: int, limit: int) -> None:
        super().__init__("", f"has {count} {what}; allowed: {limit}")


class CriticalPath(NamedTuple):
    """The heaviest path from a root to a sink."""

    nodes: tuple[str, ...]
    length: float


class InteractionGraph:
    """An acyclic, immutable graph of calls; every order is that of declaration."""

    def __init__(
        self,
        parents: Mapping[str, Sequence[str]],
        *,
        max_nodes: int = 10_000,
        max_edges: int = 100_000,
    ) -> None:
        """Build the graph from ``{node: parents}``; duplicate parents are merged. Raises GraphError."""
        if len(parents) > max_nodes:
            raise GraphTooLargeError("nodes", len(parents), max_nodes)
        import networkx as nx  # many modules: a server without programs does not need them

        edges = sum(map(len, parents.values()))
        if edges > max_edges:
            raise GraphTooLargeError("edges", edges, max_edges)
        digraph = nx.DiGraph()
        digraph.add_nodes_from(parents)
        for node, its_parents in parents.items():
            for parent in its_parents:
                if parent == node:
                    raise SelfReferenceError(node)
                if parent not in parents:
                    raise UnknownNodeError(node, parent)
                digraph.add_edge(parent, node)
        self.digraph = nx.freeze(digraph)
        """The frozen graph, with edges from parent to child."""
        place = {node: number for number, node in enumerate(parents)}
        self._parents: dict[str, tuple[str, ...]] = {n: tuple(digraph.pred[n]) for n in parents}
        self._children: dict[str, tuple[str, ...]] = {
            node: tuple(sorted(digraph.succ[node], key=place.__getitem__)) for node in parents
        }
        self.columns: tuple[tuple[str, ...], ...] = tuple(
            tuple(sorted(column, key=place.__getitem__)) for column in self._generations()
        )
        """Nodes of each stage."""
        self.stages: Mapping[str, int] = {
            node: stage for stage, column in enumerate(self.columns, start=1) for node in column
        }
        """Stage of each node: 1 + the longest path from a root."""
        self._masks: dict[str, int] | None = None
        self._place = place

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._parents)

    def __contains__(self, node: object) -> bool:
        return node in self._parents

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return all nodes."""
        return tuple(self._parents)

    @property
    def edges(self) -> int:
        """Return the number of edges."""
        return sum(map(len, self._parents.values()))

    def parents(self, node: str) -> tuple[str, ...]:
        """Return the node's parents in the order of declaration, without duplicates."""
        return self._parents[node]

    def children(self, node: str) -> tuple[str, ...]:
        """Return the nodes that have this node as a parent."""
        return self._children[node]

    @property
    def roots(self) -> tuple[str, ...]:
        """Return the nodes without a parent."""
        return self.columns[0] if self.columns else ()

    @property
    def sinks(self) -> tuple[str, ...]:
        """Return the nodes without a child."""
        return tuple(node for node, children in self._children.items() if not children)

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the number of nodes of each stage."""
        return tuple(map(len, self.columns))

    @property
    def parallelism(self) -> int:
        """Return the width of the widest stage: at least that many nodes can run at once."""
        return max(self.widths, default=0)

    def ancestors(self, node: str) -> frozenset[str]:
        """Return all ancestors of a node. Linear; for many queries use ``is_ancestor``."""
        import networkx as nx

        return frozenset(nx.ancestors(self.digraph, node))

    def is_ancestor(self, ancestor: str, node: str) -> bool:
        """Return whether ``ancestor`` precedes ``node``; no node precedes itself."""
        if self._masks is None:
            masks: dict[str, int] = {}
            for column in self.columns:
                for each in column:
                    mask = 0
                    for parent in self._parents[each]:
                        mask |= masks[parent] | 1 << self._place[parent]
                    masks[each] = mask
            self._masks = masks
        return bool(self._masks[node] >> self._place[ancestor] & 1)

    def remaining(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the weight of the heaviest path from each node to a sink, itself included.

        ``weights`` contains every node, in any unit, without negative values.
        """
        left: dict[str, float] = {}
        for column in reversed(self.columns):
            for node in column:
                below = max((left[child] for child in self._children[node]), default=0.0)
                left[node] = weights[node] + below
        return left

    def critical_path(self, weights: Mapping[str, float]) -> CriticalPath:
        """Return the heaviest path; ties go to the nodes declared first."""
        left = self.remaining(weights)
        path: list[str] = []
        following = self.roots
        while following:
            path.append(max(following, key=left.__getitem__))
            following = self._children[path[-1]]
        return CriticalPath(tuple(path), left[path[0]] if path else 0.0)

    def _generations(self) -> list[list[str]]:
        import networkx as nx

        found: list[list[str]] = []
        try:
            found.extend(nx.topological_generations(self.digraph))
        except nx.NetworkXUnfeasible:
            raise GraphCycleError(self._cycle(found)) from None
        return found

    def _cycle(self, acyclic: Sequence[Sequence[str]]) -> list[str]:
        """Return a cycle, parents first, starting at its node that was declared first.

        Each node outside the generations has a parent outside them, so a walk upwards closes a
        cycle.
        """
        done = {node for column in acyclic for node in column}
        node = next(node for node in self._parents if node not in done)
        upwards: dict[str, None] = {}
        while node not in upwards:
            upwards[node] = None
            node = next(parent for parent in self._parents[node] if parent not in done)
        walk = list(upwards)
        cycle = walk[walk.index(node) :][::-1]
        names = set(cycle)
        start = cycle.index(next(node for node in self._parents if node in names))
        return cycle[start:] + cycle[:start]
