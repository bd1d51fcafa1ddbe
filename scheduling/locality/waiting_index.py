"""Index of the queued calls by their cached blocks: finds the longest match at some workers.

Matching every queued call in the prefix tree at every selection would cost O(queue * log blocks).
Instead, calls with the same deepest cached block form a group. The depth of a group never changes;
a call changes its group only when the block after its deepest one appears in the tree (the call
watches that key) or its deepest block disappears. The holders of the block are read from the tree
at each look-up, so nothing moves when a second worker stores it.

At workers that do not hold a group's block, its calls may still match a shorter prefix. That prefix
is the same for all of them, since they share everything up to the block: one walk up the tree per
group.

Cost: one match to add a call, O(1) to remove it, one match per call that changes its group. A
selection visits the groups from the deepest down, one call per client in each, and stops when no
longer match is possible.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.locality.prefix_node import Node
from fairserve.scheduling.locality.prefix_tree import PrefixTree

Client = Any
"""Client as represented by the feeder; hashable."""


class Group:
    """Calls with the same deepest cached block, by client."""

    __slots__ = ("calls", "depth", "key", "node")

    def __init__(self, key: int, depth: int, node: Node) -> None:
        self.key = key
        """Key of the deepest cached block."""
        self.depth = depth
        """Number of blocks that all members share and that are cached anywhere."""
        self.node = node
        """Node of that block."""
        self.calls: dict[Client, list[tuple[int, str]]] = {}
        """Calls of each client as ``(arrival number, call id)``, ascending: only the first can be
        next."""


class _Waiting(NamedTuple):
    keys: BlockKeys
    depth: int
    """Number of leading keys that are cached anywhere."""
    client: Client
    arrival: int


class WaitingIndex:
    """Index over one tree. Every queued call is in one group, or matches nothing."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        tree.follow(self._appeared, self._disappeared, self._renamed)
        self._calls: dict[str, _Waiting] = {}
        self._groups: dict[int, Group] = {}
        """Groups by the key of the deepest cached block."""
        self._at: dict[Node, dict[Group, None]] = {}
        """Groups by their node."""
        self._by_depth: dict[int, dict[Group, None]] = {}
        self._depths: list[int] = []
        """Depths of all groups, ascending."""
        self._watchers: dict[int, dict[str, None]] = {}
        """Calls by the key of the block that would extend their match."""

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._calls)

    def add(self, call_id: str, keys: BlockKeys, client: Client, arrival: int) -> None:
        """Add a queued call. Raises ValueError if it was added before."""
        if call_id in self._calls:
            raise ValueError(f"call {call_id!r} is indexed already")
        depth, node = self._tree.find(keys)
        self._calls[call_id] = _Waiting(keys, depth, client, arrival)
        if depth:
            key = keys[depth - 1]
            group = self._groups.get(key)
            if group is None:
                group = self._new_group(key, depth, node)
            own = group.calls.get(client)
            if own is None:
                group.calls[client] = [(arrival, call_id)]
            else:
                insort(own, (arrival, call_id))
        if depth < len(keys):
            watchers = self._watchers.get(keys[depth])
            if watchers is None:
                self._watchers[keys[depth]] = {call_id: None}
            else:
                watchers[call_id] = None

    def remove(self, call_id: str) -> None:
        """Remove a call; unknown ids are ignored."""
        waiting = self._calls.pop(call_id, None)
        if waiting is None:
            return
        keys, depth, client, arrival = waiting
        if depth:
            group = self._groups[keys[depth - 1]]
            own = group.calls[client]
            if len(own) > 1:
                own.remove((arrival, call_id))
            else:
                del group.calls[client]
                if not group.calls:
                    self._drop_group(group)
        if depth < len(keys):
            following = keys[depth]
            watchers = self._watchers[following]
            if len(watchers) > 1:
                del watchers[call_id]
            else:
                del self._watchers[following]

    def clear(self) -> None:
        """Remove all calls, when the tree was restored from a snapshot."""
        self._calls, self._groups, self._at, self._by_depth = {}, {}, {}, {}
        self._depths, self._watchers = [], {}

    def longest_first(self, mask: int) -> Iterator[tuple[int, int, Group]]:
        """Yield ``(depth, match, group)``: groups from the deepest down.

        ``match`` is the longest match in blocks at any worker of ``mask``, 1 to ``depth``. Results
        are ordered by ``depth``, so a reader can stop at a depth below the best match so far.
        """
        match_at = self._tree.match_at
        for depth in reversed(self._depths):
            for group in self._by_depth[depth]:
                node = group.node
                if node.mask & mask and node.start < depth:
                    yield depth, depth, group  # the code below would give the same
                else:
                    match, _ = match_at(node, depth, mask)
                    if match:
                        yield depth, match, group

    def _new_group(self, key: int, depth: int, node: Node) -> Group:
        group = self._groups[key] = Group(key, depth, node)
        self._at.setdefault(node, {})[group] = None
        at_depth = self._by_depth.get(depth)
        if at_depth is None:
            at_depth = self._by_depth[depth] = {}
            insort(self._depths, depth)
        at_depth[group] = None
        return group

    def _drop_group(self, group: Group) -> None:
        del self._groups[group.key], self._by_depth[group.depth][group]
        if not self._by_depth[group.depth]:
            del self._by_depth[group.depth]
            self._depths.remove(group.depth)
        self._leave_node(group)

    def _leave_node(self, group: Group) -> None:
        at_node = self._at[group.node]
        del at_node[group]
        if not at_node:
            del self._at[group.node]

    def _appeared(self, key: int) -> None:
        """Rematch the calls that waited for this block, which is now in the tree."""
        self._match_again(self._watchers.get(key))

    def _disappeared(self, node: Node, kept: int) -> None:
        """Rematch the calls whose match ended at blocks that no worker holds any more."""
        for group in list(self._at.get(node, ())):
            if group.depth > node.start + kept:
                self._match_again(call_id for own in group.calls.values() for _, call_id in own)

    def _renamed(self, node: Node, other: Node, depth: int) -> None:
        """Move the groups of a node, down to this depth, to another node."""
        for group in [group for group in self._at.get(node, ()) if group.depth <= depth]:
            self._leave_node(group)
            group.node = other
            self._at.setdefault(other, {})[group] = None

    def _match_again(self, call_ids: Iterable[str] | None) -> None:
        for call_id in list(call_ids or ()):
            waiting = self._calls[call_id]
            self.remove(call_id)
            self.add(call_id, waiting.keys, waiting.client, waiting.arrival)
