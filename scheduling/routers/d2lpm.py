"""Decentralised DLPM (DLPM paper, Algorithm 2; "DoubleQ" in its earlier version).

Per client and worker a deficit ``q[i, w]``; a call goes to a worker with the longest match among those
where its client is in credit, to the least loaded of them when none of those has the match. The prompt
is charged at dispatch, the output at the end. When a client is in credit nowhere, it is refilled at
every worker.

With a feed window only *open* workers may be chosen (ALGORITHMS section 7, point 2): if the client has
credit only at closed ones, the least loaded open worker takes the call without a refill. Charges are
multiplied by the call's price. Weakness: the fairness bound grows with the number of workers, and holds
only for clients backlogged at all of them (Theorem 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.call import Call
from fairserve.scheduling.locality import Locality
from fairserve.scheduling.routers.loads import Loads

_SWEEP_MIN = 1024
"""Idle clients are looked through when there are about this many more."""


@dataclass(frozen=True, slots=True)
class D2lpmOptions:
    """``quantum`` is Q^w in price-weighted tokens; None takes 20 times the mean prompt so far."""

    quantum: float | None = None
    we: float = 1.0
    wq: float = 2.0

    def __post_init__(self) -> None:
        if self.quantum is not None and not self.quantum > 0:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, or null")
        if self.we < 0 or self.wq < 0:
            raise ValueError(f"we is {self.we}, wq is {self.wq}; allowed: not negative")


class D2lpm:
    """The cluster router. O(workers + log blocks) per call."""

    def __init__(self, locality: Locality, options: D2lpmOptions = D2lpmOptions()) -> None:
        self.options = options
        self._locality = locality
        self._loads = Loads()
        self._deficits: dict[str, dict[str, float]] = {}
        self._outstanding: dict[str, int] = {}
        self._prompts = 0
        self._prompt_sum = 0.0
        self._sweep_at = _SWEEP_MIN

    def deficit(self, client: str, worker_id: str) -> float:
        """``q[i, w]``; at a worker that joined later, what the client has at its best worker."""
        at = self._deficits.get(client)
        if not at:
            return 0.0
        if worker_id not in at:
            return max(at.values())
        return at[worker_id]

    def add_worker(self, worker_id: str) -> None:
        """A worker joins; clients are there as they are at their best worker."""
        self._loads.add_worker(worker_id)
        for at in self._deficits.values():
            if at:
                at[worker_id] = max(at.values())

    def remove_worker(self, worker_id: str) -> None:
        """A worker is gone, and every client's deficit there with it."""
        self._loads.remove_worker(worker_id)
        for at in self._deficits.values():
            at.pop(worker_id, None)

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Algorithm 2 ``select(G, i)`` among open workers; refills if in credit nowhere."""
        workers = self._loads.calls
        usable = [worker for worker in workers if worker in open_workers]
        if not usable:
            return None
        at = self._at("/".join(call.client))
        if all(at[worker] <= 0 for worker in workers):
            self._refill(at, self._quantum(call))
        in_credit = [worker for worker in usable if at[worker] > 0]
        if not in_credit:  # credit only at closed workers: no refill, no waiting
            return self._loads.least(usable)
        _, having = self._locality.longest(call, usable)
        both = [worker for worker in having if at[worker] > 0]
        return self._loads.least(both or in_credit)

    def _at(self, client: str) -> dict[str, float]:
        at = self._deficits.get(client)
        if at is None:
            if len(self._deficits) >= self._sweep_at:
                self._sweep()
            at = self._deficits[client] = dict.fromkeys(self._loads.calls, 0.0)
        for worker in self._loads.calls:
            if worker not in at:
                at[worker] = max(at.values(), default=0.0)
        return at

    def _refill(self, at: dict[str, float], quantum: float) -> None:
        """All rounds until one worker is in credit, at once."""
        if math.isinf(quantum):
            rounds_worth = quantum
        else:
            rounds_worth = quantum * (math.floor(-max(at.values()) / quantum) + 1)
        for worker in at:
            at[worker] += rounds_worth

    def _quantum(self, call: Call) -> float:
        if self.options.quantum is not None:
            return self.options.quantum
        if not self._prompts:
            return 20.0 * max(1, call.prompt_tokens)
        return 20.0 * max(1.0, self._prompt_sum / self._prompts)

    def dispatched(self, call: Call, worker_id: str, price: float) -> None:
        """Charge the prompt, count the call."""
        client = "/".join(call.client)
        charge = price * self.options.we * call.prompt_tokens
        self._at(client)[worker_id] -= charge
        self._outstanding[client] = self._outstanding.get(client, 0) + 1
        self._prompts += 1
        self._prompt_sum += charge
        self._loads.dispatched(worker_id)

    def started(self, call_id: str) -> None:
        """Nothing depends on it."""

    def tick(self, now_s: float) -> None:
        """Nothing depends on time."""

    def finished(self, call: Call, worker_id: str | None, price: float, output_tokens: int) -> None:
        """Charge the output, count the call no longer."""
        client = "/".join(call.client)
        at = self._deficits.get(client)
        if at is not None and worker_id is not None and worker_id in at:
            at[worker_id] -= price * self.options.wq * output_tokens
        left = self._outstanding.get(client, 0) - 1
        if left > 0:
            self._outstanding[client] = left
        else:
            self._outstanding.pop(client, None)
        self._loads.finished(worker_id)

    def _sweep(self) -> None:
        """Forget idle clients in credit everywhere: coming back at 0 is then no gain."""
        self._deficits = {
            client: at
            for client, at in self._deficits.items()
            if client in self._outstanding or any(q <= 0 for q in at.values())
        }
        self._sweep_at = 2 * len(self._deficits) + _SWEEP_MIN

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values."""
        return {
            "loads": dict(self._loads.calls),
            "deficits": {client: dict(at) for client, at in self._deficits.items()},
            "outstanding": dict(self._outstanding),
            "prompts": self._prompts,
            "prompt_sum": self._prompt_sum,
            "sweep_at": self._sweep_at,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._loads.calls = dict(state["loads"])
        self._deficits = {client: dict(at) for client, at in state["deficits"].items()}
        self._outstanding = dict(state["outstanding"])
        self._prompts = state["prompts"]
        self._prompt_sum = state["prompt_sum"]
        self._sweep_at = state["sweep_at"]
