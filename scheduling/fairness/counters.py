"""Virtual counters: the service that each client has received, with VTC's lift, by levels.

VTC Algorithm 2 lines 7-15 and 21-22, shared by VTC and WSC (ALGORITHMS section 2). A client is a
path of levels, outermost first. Clients form a tree, and every node (a tenant, each of its users)
has a counter among its siblings. When a call arrives at a node with nothing queued below it, the
node is lifted: to the smallest counter among the queued siblings or, if none is queued, to the
counter of the sibling that left the queue last. Selection takes the smallest counter level by
level; a charge goes to the whole path. So a tenant has one tenant's share, however many users it
names. With paths of one level this is VTC as published.

Predicted charges are kept apart (``reserve``): the lift compares counters without outstanding
predictions, because a newcomer lifted to a level that is later refunded would wait. Ties go to the
node with the earliest queued call, then to the smaller name.

Cost, amortised: O(log siblings) per level for an arrival and for a selection, O(1) per level for a
charge (heaps: :mod:`fairserve.scheduling.fairness.counter_node`).

Service by other counters (:meth:`VirtualCounters.charge_elsewhere`) is charged only in so far as
others wanted it, so a client that nobody competes with elsewhere owes nothing here. Where nothing is
queued, the client that received most of it counts as the one that left last: who arrives next has no
claim on the past.

Paths of different lengths can be mixed: if a client's path is a prefix of another's, its own calls
form a child named ``""`` beside the longer paths.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapreplace
from typing import Any

from fairserve.interactions.call import ClientPath
from fairserve.scheduling.fairness.counter_node import CounterNode, node_from_plain, node_to_plain
from fairserve.scheduling.fairness.falls import Falls

Factors = tuple[float, ...]
"""Multipliers of a cost at each level of a path, outermost first: 1 / the level's weight."""

_SWEEP_MIN = 1024
"""Minimum number of new nodes between two sweeps of idle ones."""

_ROUNDING = 1e-9
"""Largest rest of a prediction that counts as zero, to allow for rounding errors."""


class VirtualCounters:
    """A tree of counters.

    ``arrive`` returns the node of the client, which the other methods take. The node is valid while
    a call of the client is queued or running; afterwards it may be forgotten.

    Without ``lift_when_idle`` a node that finds no sibling queued keeps its counter, as in the code
    of the VTC paper; the paper's text lifts it to the sibling that left the queue last.
    """

    def __init__(self, *, lift_when_idle: bool = True) -> None:
        self._lift_when_idle = lift_when_idle
        self._root = CounterNode("", None)
        self._nodes = 0
        self._predicting = False
        """True once anything was reserved; lifts then compare counters without predictions."""
        self._sweep_at = _SWEEP_MIN

    @property
    def root(self) -> CounterNode:
        """Return the root of the tree; another one after a restore."""
        return self._root

    def record_falls(self) -> Falls[CounterNode]:
        """Return the decreases of queued nodes, which are recorded from now on. O(nodes)."""
        falls: Falls[CounterNode] = Falls()
        self._root.falls = falls
        for node in self._root.below():
            node.falls = falls
        return falls

    # --- the queue --------------------------------------------------------------------------------

    def arrive(self, path: ClientPath, arrival: int) -> CounterNode:
        """Queue a call with this arrival number and return its client's node (lines 7-15).

        Lifts every node of the path with nothing queued below it. Raises ValueError for ().
        """
        client = self.client(path)
        for node in client.line:
            parent = node.parent
            node.calls += 1
            if node.queued:
                node.queued += 1
                if arrival < node.earliest:
                    node.earliest = arrival
                    parent.enter(node, fell=False)
                continue
            node.served = max(node.served, self._lift_level(parent))
            node.queued = 1
            node.earliest = arrival
            parent.active += 1
            parent.enter(node, fell=False)
        if self._nodes >= self._sweep_at:
            self._sweep()
        return client

    def _lift_level(self, parent: CounterNode) -> float:
        """Return the counter to which a child with nothing queued is lifted (lines 9-14)."""
        if not parent.active:
            last = parent.last_left if self._lift_when_idle else None
            return 0.0 if last is None else last.served
        return parent.least_served() if self._predicting else parent.least().served

    def least(self) -> CounterNode:
        """Return the client with the smallest counter (line 21). IndexError if none is queued."""
        return self._root.least(client=True)

    def dispatch(
        self,
        client: CounterNode,
        earliest: int | None,
        cost: float = 0.0,
        predicted: float = 0.0,
        *,
        upcoming: bool = True,
    ) -> CounterNode | None:
        """Move a queued call to running; charge ``cost``, reserve ``predicted`` (lines 25-27).

        ``earliest`` is as in ``leave``. Returns the client to serve next; None if there is none, or
        without ``upcoming``.
        """
        if earliest is not None:
            client.earliest = earliest
        if predicted:
            self.reserve(client, predicted)
        for node in client.line:
            node.served += cost
            node.queued = left = node.queued - 1
            parent = node.parent
            if left:
                heap = parent.by_counter
                if heap[0][3] is node:
                    entry = (node.served + node.reserved, node.earliest, node.name, node)
                    node.entry = entry
                    heapreplace(heap, entry)
                else:
                    node.entry = None
            else:
                node.entry = None
                parent.active -= 1
                parent.last_left = node
                if node.falls is not None:
                    node.falls.forget(node)
        root = self._root
        if not (upcoming and root.active):
            return None
        entry = root.by_counter[0]
        top = entry[3]
        if top.entry is entry and top.line:
            return top  # same result as the line below, with fewer steps
        return root.least(client=True)

    def leave(self, client: CounterNode, earliest: int | None) -> None:
        """Remove a queued call that will not run; ``earliest`` is the first arrival among the rest."""
        self.dispatch(client, earliest, upcoming=False)
        self.done(client)

    def done(self, client: CounterNode) -> None:
        """Count a running call less, because it ended or is about to be queued again."""
        for node in client.line:
            node.calls -= 1
            if node.reserved != node.elsewhere and node.calls == node.queued:
                # Only running calls have predictions; the rest is a rounding error.
                node.reserved = node.elsewhere
                _fell(node)

    # --- charges ----------------------------------------------------------------------------------

    def charge(self, client: CounterNode, cost: float) -> None:
        """Add received service; ``cost`` is never negative."""
        assert cost >= 0, cost
        for node in client.line:
            node.served += cost
            node.entry = None

    def reserve(self, client: CounterNode, cost: float) -> None:
        """Charge a prediction, which is realised or released later."""
        self._predicting = True
        for node in client.line:
            node.reserved += cost
            node.entry = None

    def release(self, client: CounterNode, cost: float) -> None:
        """Release the part of a prediction that did not come true."""
        for node in client.line:
            left = node.reserved - cost  # may be negative by rounding
            node.reserved = left if left > _ROUNDING else 0.0
            if node.queued:
                node.parent.fell(node)

    def realise(self, client: CounterNode, cost: float) -> None:
        """Turn part of a prediction into received service; the sum does not change."""
        for node in client.line:
            served, reserved = node.served, node.reserved
            node.served = now_served = served + cost
            left = reserved - cost
            node.reserved = left = left if left > _ROUNDING else 0.0
            node.entry = None
            if now_served + left < served + reserved:  # by rounding
                _fell(node)

    def refund(self, client: CounterNode, cost: float) -> None:
        """Refund a charge for service that was lost through no fault of the client."""
        for node in client.line:
            node.served = max(0.0, node.served - cost)
            if node.queued:
                node.parent.enter(node)

    def change(self, client: CounterNode, served: float, reserved: float, factors: Factors) -> None:
        """Add to a client's received service and reservations, at each level times its factor.

        This is ``charge``, ``reserve``, ``release``, ``realise`` and ``refund`` with factors;
        negative amounts are refunded, released or realised. Cost: O(levels).
        """
        if reserved > 0:
            self._predicting = True
        last = len(factors) - 1
        for depth, node in enumerate(client.line):
            factor = factors[min(depth, last)]
            served_before, before = node.served, node.served + node.reserved
            node.served = max(0.0, served_before + factor * served)
            if reserved:
                left = node.reserved + factor * reserved
                node.reserved = left if left > _ROUNDING else 0.0
            _changed(node, served_before, before)

    def charge_elsewhere(
        self, path: ClientPath, served: float, reserved: float = 0.0, factors: Factors = (1.0,)
    ) -> None:
        """Add a client's received service and reservations from other counters.

        Both may be negative, for a refund or for a prediction that was released or realised. They
        are kept apart, as for own calls, so that lifts ignore the predictions of other models. An
        unknown client starts at the counter that it would have if it arrived now. At a level with
        nothing queued, the next arrival is lifted to the largest counter that is charged here.
        Raises ValueError for ().
        """
        if reserved > 0:
            self._predicting = True
        known, deepest = self._known_levels(path), len(factors) - 1
        for depth, node in enumerate(self.client(path).line):
            factor = factors[min(depth, deepest)]
            if depth >= known:
                node.served = self._lift_level(node.parent)
            served_before, before = node.served, node.served + node.reserved
            node.served = max(0.0, served_before + factor * served)
            if reserved:
                _reserve_elsewhere(node, factor * reserved)
            _changed(node, served_before, before)
            parent, last = node.parent, node.parent.last_left
            if not parent.active and (last is None or node.served > last.served):
                parent.last_left = node
        if self._nodes >= self._sweep_at:
            self._sweep()

    def _known_levels(self, path: ClientPath) -> int:
        """Return the number of existing nodes on the client's path, from the outermost."""
        node, levels = self._root, 0
        for name in path:
            child = node.children.get(name)
            if child is None:
                return levels
            node, levels = child, levels + 1
        return levels + ("" in node.children)

    # --- queries ----------------------------------------------------------------------------------

    def value(self, path: ClientPath) -> float:
        """Return the counter at the end of the path, predictions included; 0 if unknown."""
        node = self._find(path)
        return 0.0 if node is None else node.served + node.reserved

    def queued(self, path: ClientPath = ()) -> int:
        """Return the number of queued calls at the end of the path and below."""
        node = self._find(path)
        return 0 if node is None else node.queued

    def queued_below(self, path: ClientPath) -> bool:
        """Return whether the path ends at a level, not a client, with queued calls below it."""
        node = self._find(path)
        return node is not None and bool(node.active)

    def outstanding(self, path: ClientPath) -> float:
        """Return the outstanding predictions charged to the end of the path."""
        node = self._find(path)
        return 0.0 if node is None else node.reserved

    def contended(self, client: CounterNode) -> tuple[bool, ...]:
        """Return for each level of the client's path, outermost first, whether a sibling is queued."""
        return tuple(node.parent.active > (node.queued > 0) for node in client.line)

    def behind(self, client: CounterNode) -> tuple[float, ...]:
        """Return by how much each node of the client's path is behind its least queued sibling.

        0 where it is ahead, infinite without one. O(levels * log siblings).
        """
        found = []
        for node in client.line:
            parent, queued = node.parent, node.queued
            if queued:  # hide it
                node.queued, node.entry = 0, None
                parent.active -= 1
            level = parent.smallest()
            if queued:
                node.queued = queued
                parent.active += 1
                parent.fell(node)
            found.append(max(0.0, level - (node.served + node.reserved)))
        return tuple(found)

    def minimum(self, path: ClientPath = ()) -> float:
        """Return the smallest counter among the queued children of the node at the end of the path.

        Raises IndexError if there is none.
        """
        node = self._find(path)
        if node is None or not node.active:
            raise IndexError(f"nothing is queued at {path!r}")
        return node.smallest()

    def reach(
        self,
        slack: float,
        smallest: Callable[[CounterNode], float] = CounterNode.smallest,
        inner_slack: float | None = None,
    ) -> Callable[[CounterNode], tuple[float, ...] | None]:
        """Return a function that checks whether a queued client is within a slack.

        The function returns the counters along the client's path, outermost first, or None unless
        each is at most ``slack`` above the smallest among its queued siblings, or ``inner_slack``
        below the outermost level. ``smallest`` returns that counter, infinite without a sibling. The
        result is valid until a call is queued, leaves or is charged. Cost: O(1) per client once its
        outer levels are known.
        """
        return _Reach(self._root, slack, slack if inner_slack is None else inner_slack, smallest)

    # --- the tree ---------------------------------------------------------------------------------

    def client(self, path: ClientPath) -> CounterNode:
        """Return the node of the client's own calls, created if missing. Raises ValueError for ()."""
        if not path:
            raise ValueError("a client path has no levels; allowed: one or more")
        node = self._root
        for name in path:
            node = node.children.get(name) or self._child(node, name)
        if node.children:
            node = self._child(node, "")
        if not node.line:
            node.become_leaf(path)
        return node

    def _child(self, parent: CounterNode, name: str) -> CounterNode:
        if parent.line:
            parent = self._split(parent)
        child = parent.children.get(name)
        if child is None:
            child = parent.children[name] = CounterNode(name, parent)
            self._nodes += 1
        return child

    def _split(self, leaf: CounterNode) -> CounterNode:
        """Insert a parent for a client whose path is a prefix of another client's path."""
        above = leaf.parent
        parent = CounterNode(leaf.name, above)
        parent.served, parent.reserved = leaf.served, leaf.reserved
        parent.elsewhere = leaf.elsewhere
        parent.queued, parent.calls, parent.earliest = leaf.queued, leaf.calls, leaf.earliest
        above.children[leaf.name] = parent
        if above.last_left is leaf:
            above.last_left = parent
        parent.children[""] = leaf
        parent.active, parent.last_left = (1, None) if leaf.queued else (0, leaf)
        leaf.name, leaf.parent = "", parent
        leaf.become_leaf(leaf.path)
        # Reservations elsewhere stay at the parent: the factors that release them may skip the leaf.
        leaf.reserved, leaf.elsewhere = leaf.reserved - leaf.elsewhere, 0.0
        if leaf.falls is not None:
            leaf.falls.shape += 1
        self._nodes += 1
        parent.rank()
        above.rank()
        return parent

    def _find(self, path: ClientPath) -> CounterNode | None:
        node = self._root
        for name in path:
            child = node.children.get(name)
            if child is None:
                return None
            node = child
        return node

    # --- removal of idle nodes --------------------------------------------------------------------

    def _sweep(self) -> None:
        """Forget idle nodes at or below every queued sibling, which the lift makes harmless.

        The nodes below an idle parent are forgotten with it. Their counters differed by at most the
        charges of their last running calls, and idle clients owe each other nothing.
        """
        self._nodes = self._forget_below(self._root)
        self._sweep_at = 2 * self._nodes + _SWEEP_MIN

    def _forget_below(self, parent: CounterNode) -> int:
        """Forget idle nodes below a parent; return the number of nodes that remain."""
        level = self._lift_level(parent)
        kept = dict[str, CounterNode]()
        for name, node in parent.children.items():
            if node.served > level or node.calls or node.elsewhere or node is parent.last_left:
                kept[name] = node
            else:
                node.dissolve()
        parent.children = kept
        parent.rank()
        return len(kept) + sum(self._forget_below(node) for node in kept.values() if not node.line)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "root": node_to_plain(self._root),
            "sweep_at": self._sweep_at,
            "predicting": self._predicting,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot; nodes returned before become invalid."""
        self._root = node_from_plain(state["root"], None)
        self._nodes = sum(1 for _ in self._root.below())
        self._sweep_at = state["sweep_at"]
        self._predicting = state["predicting"]


class _Reach:
    """A check of clients against a slack. Two closures that call each other would be cyclic garbage."""

    __slots__ = ("_inner", "_known", "_root", "_slack", "_smallest")

    def __init__(
        self,
        root: CounterNode,
        slack: float,
        inner: float,
        smallest: Callable[[CounterNode], float],
    ) -> None:
        self._root, self._slack, self._inner, self._smallest = root, slack, inner, smallest
        self._known: dict[CounterNode, tuple[tuple[float, ...], float] | None] = {}

    def __call__(self, node: CounterNode) -> tuple[float, ...] | None:
        parent, known = node.parent, self._known
        if parent in known:
            found = known[parent]
        else:
            found = known[parent] = self._below(parent)
        if found is None:
            return None
        above, most = found
        counter = node.served + node.reserved
        return None if counter > most else (*above, counter)

    def _below(self, parent: CounterNode) -> tuple[tuple[float, ...], float] | None:
        """Return the parent's counters, and the largest counter that a child may have."""
        above = () if parent is self._root else self(parent)
        if above is None:
            return None
        return above, self._smallest(parent) + (self._inner if above else self._slack)


def _changed(node: CounterNode, served_before: float, before: float) -> None:
    """Update the heap entries of a node; ``before`` and ``served_before`` are its old values."""
    node.entry = None
    if not node.queued:
        return
    if node.served < served_before:
        node.parent.enter(node)
    elif node.served + node.reserved < before:
        node.parent.fell(node)


def _reserve_elsewhere(node: CounterNode, cost: float) -> None:
    own = node.reserved - node.elsewhere
    left = node.elsewhere + cost  # a rest: rounding, or a call that began before these counters
    node.elsewhere = left if left > _ROUNDING else 0.0
    node.reserved = own + node.elsewhere


def _fell(node: CounterNode) -> None:
    """Update the heap entry of a node whose counter decreased: a queued node may now be next."""
    if node.queued:
        node.parent.fell(node)
