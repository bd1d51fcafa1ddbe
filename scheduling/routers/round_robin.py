"""Round robin: the workers take turns, for all calls together or per client.

``per_client`` is the router of VTC on several workers (DLPM paper, section 7 and Theorem A.6): each
client's calls are spread evenly, so a backlogged client is backlogged at every worker, and local
fairness adds up. Plain round robin over LPM workers is the paper's RR+LPM.

A turn is an order of the workers, the least recently served first. A closed worker is skipped and
keeps its place, so it is next as soon as it is open; one that joins or returns goes to the end. A
new client begins one worker further than the previous new client, so that clients with one call
each are spread, too. Weakness: it ignores load and caches; the hit rate falls with each added
worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.call import Call, ClientPath, client_id


@dataclass(frozen=True, slots=True)
class RoundRobinOptions:
    """Options: beyond ``max_clients`` the client with the oldest call loses its turn order."""

    per_client: bool = False
    max_clients: int = 10_000

    def __post_init__(self) -> None:
        if self.max_clients < 1:
            raise ValueError(f"max_clients is {self.max_clients}; allowed: 1 or more")


class RoundRobin:
    """Round-robin router. O(workers) per call; with ``per_client`` O(clients) per membership change."""

    def __init__(self, options: RoundRobinOptions = RoundRobinOptions()) -> None:
        self.options = options
        self._workers: dict[str, None] = {}
        """Workers in the order of joining."""
        self._turns: OrderedDict[str, dict[str, None]] = OrderedDict()
        """Workers of each client, least recently served first; clients in the order of their last
        calls."""
        self._begun = 0
        """Number of clients that have had a first turn."""

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """Add a worker at the end of every turn. Raises ValueError if it was added before."""
        if worker_id in self._workers:
            raise ValueError(f"worker {worker_id!r} is known already")
        self._workers[worker_id] = None
        for turn in self._turns.values():
            turn[worker_id] = None

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker; unknown ones are ignored."""
        self._workers.pop(worker_id, None)
        for turn in self._turns.values():
            turn.pop(worker_id, None)

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Return the least recently served open worker. Changes nothing."""
        turn = self._turns.get(self._client(call)) or self._first_turn()
        wanted = set(open_workers)
        return next((worker for worker in turn if worker in wanted), None)

    def dispatched(self, call: Call, worker_id: str, charge_factor: float) -> None:
        """Record the worker's turn. Raises KeyError for an unknown worker."""
        client = self._client(call)
        turn = self._turns.get(client)
        if turn is None:
            turn = self._turns[client] = self._first_turn()
            self._begun += 1
            if len(self._turns) > self.options.max_clients:
                self._turns.popitem(last=False)
        self._turns.move_to_end(client)
        del turn[worker_id]
        turn[worker_id] = None

    def started(self, call_id: str) -> None:
        """Do nothing: this router does not use it."""

    def finished(
        self, call: Call, worker_id: str | None, charge_factor: float, output_tokens: int
    ) -> None:
        """Do nothing: this router does not count calls."""

    def _client(self, call: Call) -> str:
        return client_id(call.client) if self.options.per_client else ""

    def _first_turn(self) -> dict[str, None]:
        workers = list(self._workers)
        first = self._begun % len(workers) if workers else 0
        return dict.fromkeys(workers[first:] + workers[:first])

    def credits(self, path: ClientPath) -> Mapping[str, float]:
        """Return no deficits: this router has none."""
        return {}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "workers": list(self._workers),
            "turns": [[client, list(turn)] for client, turn in self._turns.items()],
            "begun": self._begun,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._workers = dict.fromkeys(state["workers"])
        self._turns = OrderedDict((client, dict.fromkeys(turn)) for client, turn in state["turns"])
        self._begun = state["begun"]
