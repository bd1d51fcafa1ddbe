"""Deficit round robin adapted to unknown output lengths (VTC paper, C.2), by levels.

Clients form a ring. When a client is visited with a balance ``C`` that is not positive, it receives
the quantum. While the balance is positive its calls are taken; each pays ``wp`` per prompt token,
so the last one overdraws, and ``wq`` per decoded token. A client deep in debt is skipped for
several rounds. A client with nothing queued is refilled until its balance is positive, and no
further. The call's weight divides its charges. ``quantum -> 0`` behaves as VTC.

A client is a path of levels. The nodes below one parent (the users of a tenant) form a separate
ring with its own rounds; selection goes from the outermost ring inwards, and a charge goes to the
whole path. So a tenant has one tenant's share, however many users it names. A path of one level is
C.2.

The paper calls simulating the rounds inefficient; here they are counted, not executed. A node's
balance determines the round in which it will be positive, the heap of (round, place in the ring)
has the next node on top, and a balance is updated when it is read. A decision costs O(log siblings)
per level for any quantum.

Decisions beyond the paper: rounds pass only on the way to a client with a waiting call, so an empty
queue does not forgive debts; a new node joins at the end of its ring and is visited in the next
round; a pass that ended because a call did not fit continues with the same client. If a client's
path is a prefix of another's, the client and the level are two siblings.

Bound (outputs reserved), at each level among siblings: with ``U = wp * longest prompt + wq * M`` a
balance stays in ``(-U, quantum]`` and the service of backlogged siblings differs by at most
``2 * (U + 2 * quantum)``. Weakness: a newcomer waits for its turn in the ring, regardless of the
service of others.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from fairserve.interactions.call import ClientPath, path_of_id
from fairserve.scheduling.local.by_client import ByClient
from fairserve.scheduling.local.client_queues import ClientQueue, Entry
from fairserve.scheduling.local.vtc_options import check_token_weights

_SWEEP_MIN = 1024
"""Number of new idle nodes after which all are swept."""


@dataclass(frozen=True, slots=True)
class DrrOptions:
    """Options: ``quantum`` is Q in units of the cost; ``wp`` and ``wq`` weigh prompt and output."""

    quantum: float = 500.0
    wp: float = 1.0
    wq: float = 2.0

    def __post_init__(self) -> None:
        check_token_weights(self.wp, self.wq)
        if not 0 < self.quantum < math.inf:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, finite")


class _Node:
    """A client with its queue, or a level with the ring of the nodes below it."""

    __slots__ = (
        "balance",
        "below",
        "line",
        "place",
        "queue",
        "ready",
        "ring",
        "running",
        "visited",
        "waiting",
    )

    def __init__(self, ring: _Ring, above: tuple[_Node, ...], *, client: bool) -> None:
        ring.places += 1
        self.ring = ring
        """Ring that contains the node."""
        self.place = ring.places
        """Place in the ring; never reused."""
        self.visited = ring.round
        """Last round whose visit is included in the balance."""
        self.balance = 0.0
        self.ready = 0
        """Round in which the next visit finds the balance positive; exact while calls wait."""
        self.waiting = 0
        """Waiting calls here and below."""
        self.running = 0
        """Running calls here and below."""
        self.line: tuple[_Node, ...] = (*above, self)
        """Nodes charged for this one, outermost first."""
        self.queue = ClientQueue()
        self.below: _Ring | None = None if client else _Ring(ring.quantum)


class _Ring:
    """Siblings, visited in turn."""

    __slots__ = ("active", "heap", "place", "places", "quantum", "round")

    def __init__(self, quantum: float) -> None:
        self.quantum = quantum
        self.round = 0
        self.place = 0
        """Place reached in the current round."""
        self.places = 0
        self.active = 0
        """Number of nodes with waiting calls."""
        self.heap: list[tuple[int, int, _Node]] = []
        """Entries ``(ready, place, node)`` of these nodes; replaced if they reach the top too early."""

    def choose(self) -> _Node:
        """Return the node whose turn it is; at least one has a waiting call."""
        heap = self.heap
        while True:
            ready, place, node = heap[0]
            if not node.waiting or ready > node.ready:
                heapq.heappop(heap)  # stale; a waiting node has another entry
            elif ready < node.ready:
                heapq.heapreplace(heap, (node.ready, place, node))
            else:
                self.round, self.place = ready, place
                if self.settle(node).balance > 0:
                    return node
                self.await_credit(node)  # the division was rounded

    def enter(self, node: _Node) -> None:
        """Add a node that has a waiting call again."""
        self.active += 1
        self.settle(node)
        if node.balance <= 0:
            self.await_credit(node)
        elif (node.visited, node.place) == (self.round, self.place):
            node.ready = self.round
        else:
            node.ready = node.visited + 1
        if len(self.heap) > 2 * self.active + 64:  # mostly stale
            waiting = {entry[2] for entry in self.heap if entry[2].waiting} | {node}
            self.heap = [(each.ready, each.place, each) for each in waiting]
            heapq.heapify(self.heap)
        else:
            heapq.heappush(self.heap, (node.ready, node.place, node))

    def charge(self, node: _Node, cost: float) -> None:
        """Subtract ``cost`` from the node's balance."""
        self.settle(node)
        node.balance -= cost
        if node.balance <= 0:
            self.await_credit(node)

    def await_credit(self, node: _Node) -> None:
        """Queue the node at the round in which refills make its settled balance positive."""
        node.ready = node.visited + math.floor(-node.balance / self.quantum) + 1

    def settle(self, node: _Node) -> _Node:
        """Apply the visits since the node was last settled."""
        visited = self.round if node.place <= self.place else self.round - 1
        missed = visited - node.visited
        if missed > 0:
            node.visited = visited
            if node.balance <= 0:
                needed = math.floor(-node.balance / self.quantum) + 1
                node.balance += self.quantum * min(missed, needed)
        return node


class Drr(ByClient):
    """Local scheduler DRR. O(log siblings) per level and selection, O(1) per level and token."""

    def __init__(self, options: DrrOptions = DrrOptions()) -> None:
        super().__init__()
        self.options = options
        self._root = _Ring(options.quantum)
        self._clients: dict[ClientPath, _Node] = {}
        self._levels: dict[ClientPath, _Node] = {}
        """Levels above clients, by path prefix."""
        self._sweep_at = _SWEEP_MIN

    def balance(self, client_id: str) -> float:
        """Return ``C`` of a client, or of an outer level by its id; 0 if unknown."""
        path = path_of_id(client_id)
        node = self._clients.get(path) or self._levels.get(path)
        return 0.0 if node is None else node.ring.settle(node).balance

    def accept(self, cached_tokens: int) -> None:
        """Charge the selected call's prompt, unless it was charged before a preemption."""
        entry = self._offered
        assert entry is not None, "accept follows a peek that offered a call"
        self._offered = None
        self._waiting -= 1
        self._dequeue(entry)
        for node in entry.client.line:
            node.running += 1
        if entry.cached_tokens < 0:
            entry.cached_tokens = cached_tokens
            self._charge(entry, self.options.wp * entry.call.prompt_tokens)

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge ``wq`` per token that a running call generated."""
        self._charge(self._running(call_id), self.options.wq * tokens)

    def _surplus(self, entry: Entry) -> tuple[float, ...]:
        return tuple(-node.ring.settle(node).balance for node in entry.client.line)

    def _choose(self) -> Entry:
        node = self._root.choose()
        while node.below is not None:
            node = node.below.choose()
        first = node.queue.first
        assert first is not None, "a node is chosen only while calls wait"
        return first

    def _enqueue(self, entry: Entry) -> None:
        client = entry.client = self._client(entry.call.path)
        client.queue.add(entry)
        for node in client.line:
            node.waiting += 1
            if node.waiting == 1:
                node.ring.enter(node)

    def _client(self, path: ClientPath) -> _Node:
        client = self._clients.get(path)
        if client is None:
            if len(self._clients) + len(self._levels) >= self._sweep_at:
                self._sweep()
            ring = self._root
            above: tuple[_Node, ...] = ()
            for length in range(1, len(path)):
                level = self._levels.get(path[:length])
                if level is None:
                    level = self._levels[path[:length]] = _Node(ring, above, client=False)
                assert level.below is not None, "made with a ring"
                ring, above = level.below, level.line
            client = self._clients[path] = _Node(ring, above, client=True)
        return client

    def _dequeue(self, entry: Entry) -> None:
        entry.client.queue.remove(entry)
        for node in entry.client.line:
            node.waiting -= 1
            if not node.waiting:
                node.ring.active -= 1

    def _cancelled(self, entry: Entry) -> None:
        self._dequeue(entry)

    def _preempted(self, entry: Entry) -> None:
        self._ended(entry)
        self._enqueue(entry)

    def _ended(self, entry: Entry) -> None:
        for node in entry.client.line:
            node.running -= 1

    def _charge(self, entry: Entry, cost: float) -> None:
        cost /= entry.call.weight
        for node in entry.client.line:
            node.ring.charge(node, cost)

    def _sweep(self) -> None:
        """Forget idle nodes in credit; if they return, they wait for the next round's quantum.

        A level is kept as long as it has a node below it.
        """
        self._clients = {path: node for path, node in self._clients.items() if _kept(node)}
        inner = {path[:length] for path in self._clients for length in range(1, len(path))}
        self._levels = {
            path: node for path, node in self._levels.items() if path in inner or _kept(node)
        }
        self._sweep_at = 2 * (len(self._clients) + len(self._levels)) + _SWEEP_MIN


def _kept(node: _Node) -> bool:
    return bool(node.running or node.waiting or node.ring.settle(node).balance <= 0)
