"""Preble's tree of recent prompts: a radix tree over block keys, with the workers of each node.

A node is a stretch of blocks between two branches. Keys are chained hashes (equal key, equal whole
prefix), so a stretch is compared by binary search. Inserting a prompt that leaves a node in its
middle splits it: the new upper part takes over the allocation and the references, and the
statistics if it is now the *important* one. A node is important if its own tokens outnumber the
context before it.

The caller bounds the tree: a node exists while it, or a child, is pinned by a call in the window or
a running call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairserve.benchmarks.policies.running_median import RunningMedian
from fairserve.scheduling.locality.block_keys import BlockKeys


class Statistics:
    """Statistics of the window's calls below one important node."""

    __slots__ = ("calls", "counted", "hit_tokens", "node", "outputs", "prompt_tokens", "shared")

    def __init__(self, node: RequestNode, outputs: RunningMedian) -> None:
        self.node = node
        self.calls = 0
        self.hit_tokens = 0
        self.prompt_tokens = 0
        self.outputs = outputs
        self.counted: dict[str, tuple[int, int]] = {}
        """Current contribution of these calls to each worker's load: prefill, output."""
        self.shared = False
        """True if this counts as the load of a shared node."""

    @property
    def miss_rate(self) -> float:
        """Return the share of prompt tokens that were not matched on arrival."""
        return 1.0 - self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 1.0


class RequestNode:
    """A stretch of blocks: ``keys`` are its own, ``depth`` counts from the root to its end."""

    __slots__ = (
        "allocated",
        "children",
        "depth",
        "keys",
        "parent",
        "pins",
        "references",
        "serial",
        "statistics",
    )

    def __init__(
        self, serial: int, parent: RequestNode | None, keys: BlockKeys, depth: int
    ) -> None:
        self.serial = serial
        """Order of creation; ties go to the older node."""
        self.parent = parent
        self.keys = keys
        self.depth = depth
        self.children: dict[int, RequestNode] = {}
        """Children by their first key."""
        self.allocated: dict[str, None] = {}
        """Workers to which calls through this node were sent."""
        self.references: dict[str, int] = {}
        """Number of running calls through this node, by worker."""
        self.statistics: Statistics | None = None
        self.pins = 0

    @property
    def important(self) -> bool:
        """Return whether it has more own blocks than blocks before it; true for the root."""
        return self.parent is None or len(self.keys) > self.depth - len(self.keys)


def path_of(node: RequestNode) -> list[RequestNode]:
    """Return the nodes from this one up to below the root; the root alone for the root."""
    path = [node]
    while node.parent is not None and node.parent.parent is not None:
        node = node.parent
        path.append(node)
    return path


def important_above(node: RequestNode) -> RequestNode:
    """Return the nearest important node, itself included."""
    while not node.important:
        assert node.parent is not None
        node = node.parent
    return node


def subtree_of(node: RequestNode) -> list[RequestNode]:
    """Return the node and all below it."""
    nodes, left = [], [node]
    while left:
        nodes.append(left.pop())
        left.extend(nodes[-1].children.values())
    return nodes


class RequestTree:
    """Tree of recent prompts. ``on_drop`` gets every removed node, ``on_split`` (upper, lower)."""

    def __init__(
        self,
        on_split: Callable[[RequestNode, RequestNode], None],
        on_drop: Callable[[RequestNode], None],
    ) -> None:
        self._on_split = on_split
        self._on_drop = on_drop
        self._serial = 0
        self.root = RequestNode(0, None, (), 0)
        self.nodes: dict[int, RequestNode] = {0: self.root}
        """Nodes by serial number."""

    def find(self, keys: BlockKeys) -> tuple[int, RequestNode]:
        """Return the number of matched blocks, and the node in which the match ends."""
        node = self.root
        matched = 0
        while matched < len(keys):
            child = node.children.get(keys[matched])
            if child is None:
                break
            common = _common(child.keys, keys, matched)
            node, matched = child, matched + common
            if common < len(child.keys):
                break
        return matched, node

    def insert(self, keys: BlockKeys) -> RequestNode:
        """Return the node at which this prompt ends, created if missing; may split a node."""
        matched, node = self.find(keys)
        if node.parent is not None and matched < node.depth:
            node = self._split(node, matched)
        if matched == len(keys):
            return node
        leaf = self._new(node, keys[matched:], len(keys))
        node.children[keys[matched]] = leaf
        return leaf

    def _new(self, parent: RequestNode, keys: BlockKeys, depth: int) -> RequestNode:
        self._serial += 1
        node = self.nodes[self._serial] = RequestNode(self._serial, parent, keys, depth)
        return node

    def _split(self, lower: RequestNode, depth: int) -> RequestNode:
        """Split a node at a depth; return the upper part. The lower part keeps its identity."""
        assert lower.parent is not None
        cut = depth - (lower.depth - len(lower.keys))
        upper = self._new(lower.parent, lower.keys[:cut], depth)
        upper.allocated = dict(lower.allocated)
        upper.references = dict(lower.references)
        lower.parent.children[upper.keys[0]] = upper
        lower.parent, lower.keys = upper, lower.keys[cut:]
        upper.children[lower.keys[0]] = lower
        self._on_split(upper, lower)
        return upper

    def unpin(self, node: RequestNode) -> None:
        """Remove one pin; drop the node and its ancestors once nothing needs them."""
        node.pins -= 1
        while node.parent is not None and not node.pins and not node.children:
            parent = node.parent
            del parent.children[node.keys[0]]
            del self.nodes[node.serial]
            self._on_drop(node)
            node = parent

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values: nodes, parents first, without pins."""
        nodes = []
        for node in sorted(self.nodes.values(), key=lambda node: (node.depth, node.serial)):
            parent = None if node.parent is None else node.parent.serial
            nodes.append(
                [
                    node.serial,
                    parent,
                    list(node.keys),
                    node.depth,
                    list(node.allocated),
                    node.references,
                ]
            )
        return {"serial": self._serial, "nodes": nodes}

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot, without pins."""
        self._serial = state["serial"]
        self.nodes = {}
        for serial, parent_serial, keys, depth, allocated, references in state["nodes"]:
            parent = None if parent_serial is None else self.nodes[parent_serial]
            node = self.nodes[serial] = RequestNode(serial, parent, keys, depth)
            node.allocated = dict.fromkeys(allocated)
            node.references = dict(references)
            if parent is None:
                self.root = node
            else:
                parent.children[keys[0]] = node


def _common(own: BlockKeys, keys: BlockKeys, start: int) -> int:
    """Return how many of a node's keys continue a prompt at ``start``; at least one does."""
    low, high = 1, min(len(own), len(keys) - start)
    while low < high:  # own[:low] is common
        middle = (low + high + 1) // 2
        if own[middle - 1] == keys[start + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
