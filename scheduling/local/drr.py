"""Deficit round robin adapted to unknown output lengths (VTC paper, C.2).

Clients stand in a ring. When a client is visited and its balance ``C`` is not positive, it gets the
quantum; while it is positive its calls are taken, each paying ``wp`` per prompt token, so the last one
overdraws; every decoded token costs ``wq`` more. A client deep in debt is passed by for several
rounds. One with nothing queued is refilled until its balance is positive, and no further. Charges are
divided by the call's weight. ``quantum -> 0`` behaves as VTC.

The paper calls simulating the rounds inefficient; here they are counted, not executed: a client's
balance tells in which round it will be positive, a heap of (round, place in the ring) gives the next
client, and a balance is brought up to date when it is looked at. A decision costs O(log clients)
whatever the quantum.

Settled here: rounds pass only on the way to a client with a waiting call, so an empty queue does not
forgive debts; a new client joins at the end of the ring and is visited in the next round; a pass that
ended for want of room goes on with the same client.

Bound (outputs reserved): with ``U = wp * longest prompt + wq * M`` a balance stays in ``(-U, quantum]``
and the service of backlogged clients differs by at most ``2 * (U + 2 * quantum)``.
Weakness: a newcomer waits for its place in the ring, whoever has received how much.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from fairserve.scheduling.local.by_client import ByClient
from fairserve.scheduling.local.client_queues import ClientQueue, Entry
from fairserve.scheduling.local.vtc import check_token_weights

_SWEEP_MIN = 1024
"""Idle clients are looked through when there are about this many more."""


@dataclass(frozen=True, slots=True)
class DrrOptions:
    """``quantum`` is Q in units of the cost; ``wp`` and ``wq`` weigh prompt and output tokens."""

    quantum: float = 500.0
    wp: float = 1.0
    wq: float = 2.0

    def __post_init__(self) -> None:
        check_token_weights(self.wp, self.wq)
        if not 0 < self.quantum < math.inf:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, finite")


@dataclass(slots=True)
class _Client:
    place: int
    """In the ring; never used twice."""
    visited: int
    """The last round whose visit is contained in the balance."""
    balance: float = 0.0
    ready: int = 0
    """The round in which the next visit finds the balance positive; true while calls wait."""
    running: int = 0
    queue: ClientQueue = field(default_factory=ClientQueue)


class Drr(ByClient):
    """O(log clients) per selection, O(1) per decoded token, both amortised."""

    def __init__(self, options: DrrOptions = DrrOptions()) -> None:
        super().__init__()
        self.options = options
        self._clients: dict[str, _Client] = {}
        self._round = 0
        self._place = 0
        """Where in the ring the present round has come to."""
        self._places = 0
        self._heap: list[tuple[int, int, str]] = []
        """``(ready, place, client)``; an entry is replaced when it comes to the top too early."""
        self._sweep_at = _SWEEP_MIN

    def balance(self, client_id: str) -> float:
        """``C`` of a client now; 0 for one that is not known."""
        client = self._clients.get(client_id)
        return 0.0 if client is None else self._settle(client).balance

    def accept(self, cached_tokens: int) -> None:
        """Charge the selected call's prompt, unless it was charged before a preemption."""
        entry = self._offered
        assert entry is not None, "accept follows a peek that offered a call"
        self._offered = None
        self._waiting -= 1
        entry.client.queue.remove(entry)
        entry.client.running += 1
        if entry.cached_tokens < 0:
            entry.cached_tokens = cached_tokens
            self._charge(entry, self.options.wp * entry.call.prompt_tokens)

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge ``wq`` per token that a running call generated."""
        self._charge(self._running(call_id), self.options.wq * tokens)

    def _surplus(self, entry: Entry) -> tuple[float, ...]:
        return (-self._settle(entry.client).balance,)

    def _choose(self) -> Entry:
        heap = self._heap
        while True:
            ready, place, client_id = heap[0]
            client = self._clients.get(client_id)
            first = None if client is None else client.queue.first
            if client is None or first is None or client.place != place or ready > client.ready:
                heapq.heappop(heap)  # of an earlier time; a waiting client has another entry
            elif ready < client.ready:
                heapq.heapreplace(heap, (client.ready, place, client_id))
            else:
                self._round, self._place = ready, place
                if self._settle(client).balance > 0:
                    return first
                self._await_credit(client)  # the division was rounded

    def _enqueue(self, entry: Entry) -> None:
        client_id = entry.call.client_id
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= self._sweep_at:
                self._sweep()
            self._places += 1
            client = self._clients[client_id] = _Client(self._places, visited=self._round)
        entry.client = client
        client.queue.add(entry)
        if len(client.queue) > 1:
            return
        self._settle(client)
        if client.balance <= 0:
            self._await_credit(client)
        elif (client.visited, client.place) == (self._round, self._place):
            client.ready = self._round
        else:
            client.ready = client.visited + 1
        if len(self._heap) > 2 * len(self._clients) + 64:  # mostly left by earlier visits
            self._heap = [
                (other.ready, other.place, other_id)
                for other_id, other in self._clients.items()
                if other.queue.first is not None
            ]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (client.ready, client.place, client_id))

    def _cancelled(self, entry: Entry) -> None:
        entry.client.queue.remove(entry)

    def _preempted(self, entry: Entry) -> None:
        entry.client.running -= 1
        self._enqueue(entry)

    def _ended(self, entry: Entry) -> None:
        entry.client.running -= 1

    def _charge(self, entry: Entry, cost: float) -> None:
        client = self._settle(entry.client)
        client.balance -= cost / entry.call.weight
        if client.balance <= 0:
            self._await_credit(client)

    def _await_credit(self, client: _Client) -> None:
        """The round in which refills will have made the settled balance positive."""
        client.ready = client.visited + math.floor(-client.balance / self.options.quantum) + 1

    def _settle(self, client: _Client) -> _Client:
        """Carry out the visits since the client was last looked at."""
        visited = self._round if client.place <= self._place else self._round - 1
        missed = visited - client.visited
        if missed > 0:
            client.visited = visited
            if client.balance <= 0:
                quantum = self.options.quantum
                needed = math.floor(-client.balance / quantum) + 1
                client.balance += quantum * min(missed, needed)
        return client

    def _sweep(self) -> None:
        """Forget idle clients in credit: coming back, they wait for the next round's quantum."""
        self._clients = {
            client_id: client
            for client_id, client in self._clients.items()
            if client.running or client.queue.first is not None or self._settle(client).balance <= 0
        }
        self._sweep_at = 2 * len(self._clients) + _SWEEP_MIN
