"""Test the shape of a declared graph: stages, width, critical path, and errors of invalid graphs."""

import networkx as nx
import pytest

from fairserve.interactions.tracking.graph import (
    GraphCycleError,
    GraphError,
    GraphTooLargeError,
    InteractionGraph,
    SelfReferenceError,
    UnknownNodeError,
)

#   plan -> a -> write        plan is declared last: the order of declaration is not the order of work
#   plan -> b -> c -> write
PARENTS = {"write": ["a", "c"], "a": ["plan"], "b": ["plan"], "c": ["b"], "plan": []}


def test_stages_width_and_critical_path():
    graph = InteractionGraph(PARENTS)
    assert graph.nodes == ("write", "a", "b", "c", "plan")
    assert (len(graph), graph.edges) == (5, 5)
    assert graph.stages == {"plan": 1, "a": 2, "b": 2, "c": 3, "write": 4}
    assert graph.columns == (("plan",), ("a", "b"), ("c",), ("write",))
    assert graph.widths == (1, 2, 1, 1)
    assert graph.parallelism == 2
    assert (graph.roots, graph.sinks) == (("plan",), ("write",))
    assert graph.parents("write") == ("a", "c")
    assert graph.children("plan") == ("a", "b")
    assert graph.ancestors("c") == {"b", "plan"}


def test_the_first_declared_of_equal_paths_is_critical():
    graph = InteractionGraph({"b": ["r"], "a": ["r"], "r": []})
    assert graph.critical_path({"r": 1.0, "a": 1.0, "b": 1.0}).nodes == ("r", "b")


def test_a_repeated_parent_counts_once():
    graph = InteractionGraph({"a": [], "b": ["a", "a"]})
    assert (graph.edges, graph.parents("b"), graph.children("a")) == (1, ("a",), ("b",))


def test_a_graph_may_be_empty():
    graph = InteractionGraph({})
    assert (graph.columns, graph.parallelism, graph.critical_path({})) == ((), 0, ((), 0.0))


def test_a_graph_is_immutable():
    with pytest.raises(nx.NetworkXError, match="Frozen"):
        InteractionGraph(PARENTS).digraph.add_edge("write", "plan")


@pytest.mark.parametrize(
    ("parents", "error", "node", "message"),
    [
        ({"a": ["a"]}, SelfReferenceError, "a", "'a' is its own parent"),
        (
            {"a": [], "b": ["x"]},
            UnknownNodeError,
            "b",
            "'x', a parent of 'b', is not a node of this graph",
        ),
        ({"a": ["b"], "b": ["a"]}, GraphCycleError, "a", "a -> b -> a is a cycle"),
        # Nodes before or after a cycle are not part of it.
        (
            {"end": ["z"], "z": ["y"], "y": ["x"], "x": ["z", "root"], "root": []},
            GraphCycleError,
            "z",
            "z -> x -> y -> z is a cycle",
        ),
    ],
)
def test_graph_errors_name_the_node(parents, error, node, message):
    with pytest.raises(error) as raised:
        InteractionGraph(parents)
    assert (raised.value.node, str(raised.value)) == (node, message)
    assert isinstance(raised.value, GraphError)
    assert isinstance(raised.value, ValueError)


def test_a_long_cycle_is_abbreviated():
    size = 100
    with pytest.raises(GraphCycleError) as raised:
        InteractionGraph({f"n{i}": [f"n{(i - 1) % size}"] for i in range(size)})
    assert raised.value.cycle == tuple(f"n{i}" for i in range(size))
    assert str(raised.value) == (
        "n0 -> n1 -> n2 -> n3 -> n4 -> n5 -> ... 89 more ... -> "
        "n95 -> n96 -> n97 -> n98 -> n99 -> n0 is a cycle"
    )


def test_graphs_are_bounded():
    InteractionGraph(PARENTS, max_nodes=5, max_edges=5)
    with pytest.raises(GraphTooLargeError, match="has 5 nodes; allowed: 4"):
        InteractionGraph(PARENTS, max_nodes=4)
    with pytest.raises(GraphTooLargeError, match="has 5 edges; allowed: 4"):
        InteractionGraph(PARENTS, max_edges=4)


def test_a_long_chain_does_not_recurse():
    size = 5_000
    graph = InteractionGraph({f"n{i}": [f"n{i - 1}"] if i else [] for i in range(size)})
    assert graph.stages[f"n{size - 1}"] == size
    assert graph.critical_path(dict.fromkeys(graph.nodes, 2.0)).length == 2.0 * size
    assert graph.is_ancestor("n0", f"n{size - 1}")
    with pytest.raises(GraphCycleError):
        InteractionGraph({f"n{i}": [f"n{(i - 1) % size}"] for i in range(size)})
