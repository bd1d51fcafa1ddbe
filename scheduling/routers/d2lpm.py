"""Decentralised DLPM (DLPM paper, Algorithm 2; "DoubleQ" in its earlier version).

Per client and worker a deficit ``q[i, w]``; a call goes to a worker with the longest match among those
where its client is in credit, to the least loaded of them when none of those has the match. The prompt
is charged at dispatch, the output at the end. When a client is in credit nowhere, it is refilled at
every worker.

With levels (ALGORITHMS sections 0 and 6) every level of the client's path has deficits of its own: a
call may go where all of them are in credit, every charge goes to the whole path, and a level is refilled
when it has no credit at any worker that the levels above it leave. A level above the client binds only
while one of its siblings has calls outstanding, too: alone, it is sent nowhere for fairness' sake. And
with equal quanta a tenant of many users would leave the worker that has their prefix after a few calls,
so by default (``level_quantum``) the quantum of such a level is multiplied by its clients with calls
outstanding. Shares are not decided here but by the feeder and at the workers.

With a feed window only *open* workers may be chosen (ALGORITHMS section 7, point 2): if the client has
credit only at closed ones, the least loaded open worker takes the call without a refill. Charges are
multiplied by the call's charge factor. Weakness: the fairness bound grows with the number of workers
and holds only for clients backlogged at all of them (Theorem 5.1). Options limit two more
(decision 8): a client without credit leaves the worker with all its runs' contexts (``quantum_prompts``,
``cached_weight``), and a client with credit stays at a crowded worker (``balance_abs``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairserve.interactions.call import Call, ClientPath
from fairserve.scheduling.cost import check_cached_weight
from fairserve.scheduling.locality import Locality
from fairserve.scheduling.routers.credit import Credit
from fairserve.scheduling.routers.loads import Loads, check_balance

_SWEEP_MIN = 1024
"""Idle clients are looked through when there are about this many more."""


@dataclass(frozen=True, slots=True)
class D2lpmOptions:
    """``quantum`` is Q^w in tokens times charge factor; None: ``quantum_prompts`` mean prompts."""

    quantum: float | None = None
    quantum_prompts: float = 20.0
    we: float = 1.0
    wq: float = 2.0
    cached_weight: float = 1.0
    """Cost of a prompt token that the worker is believed to have cached, as a share of another one; 1 is
    the paper's."""
    charge_cached: bool | None = None
    """Alias, replaces ``cached_weight`` where it is given: by 1 if true, by 0 if false."""
    balance_abs: int | None = None
    """No match is looked at while a worker has so many more calls outstanding than another, and
    ``balance_rel`` times as many; None (the paper): never."""
    balance_rel: float = 1.5
    level_quantum: Literal["clients", "equal"] = "clients"
    """Quantum of a level above the client: times its active clients, or the same at every level."""

    def __post_init__(self) -> None:
        if self.quantum is not None and not self.quantum > 0:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, or null")
        if not 0 < self.quantum_prompts < math.inf:
            raise ValueError(f"quantum_prompts is {self.quantum_prompts}; allowed: over 0, finite")
        if self.we < 0 or self.wq < 0:
            raise ValueError(f"we is {self.we}, wq is {self.wq}; allowed: not negative")
        check_balance(self.balance_abs, self.balance_rel)
        weight = check_cached_weight(self.cached_weight, self.charge_cached)
        object.__setattr__(self, "cached_weight", weight)
        if self.level_quantum not in ("clients", "equal"):
            raise ValueError(
                f"level_quantum is {self.level_quantum!r}; allowed: 'clients', 'equal'"
            )


class D2lpm:
    """The cluster router. O(levels + log blocks) per call; refills O(workers that a client used)."""

    def __init__(self, locality: Locality, options: D2lpmOptions = D2lpmOptions()) -> None:
        self.options = options
        self._locality = locality
        self._loads = Loads(locality.workers)
        self._credits: dict[ClientPath, Credit] = {}
        """By path, and by every beginning of one: a tenant, a user of it."""
        self._paths: dict[ClientPath, list[Credit]] = {}
        """The deficits along the path of every client that was looked up since the last sweep."""
        self._active = 0
        """Clients with calls outstanding."""
        self._prompts = 0
        self._prompt_sum = 0.0
        self._sweep_at = _SWEEP_MIN

    def deficit(self, client: ClientPath, worker_id: str) -> float:
        """``q[i, w]`` of a client, or of a level above it; 0 if one of the two is not known."""
        credit = self._credits.get(client)
        if credit is None or worker_id not in self._loads.calls:
            return 0.0
        return credit.value(self._locality.workers.slot(worker_id))

    def credits(self, path: ClientPath) -> Mapping[str, float]:
        """``q[i, w]`` by worker, as of the last refill."""
        credit = self._credits.get(path)
        if credit is None:
            return {}
        slot = self._locality.workers.slot
        return {worker_id: credit.value(slot(worker_id)) for worker_id in self._loads.calls}

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """A worker joins; clients are there as they are at their best worker."""
        others = self._loads.all
        self._loads.add_worker(worker_id, calls)
        slot = self._locality.workers.slot(worker_id)
        for credit in self._credits.values():
            credit.join(slot, others)

    def remove_worker(self, worker_id: str) -> None:
        """A worker is gone, and every client's deficit there with it."""
        if worker_id not in self._loads.calls:
            return
        self._loads.remove_worker(worker_id)
        slot = self._locality.workers.slot(worker_id)
        for credit in self._credits.values():
            credit.leave(slot)

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Algorithm 2 ``select(G, i)`` among open workers; refills if in credit nowhere."""
        loads = self._loads
        usable = self._locality.workers.mask(open_workers) & loads.all
        if not usable:
            return None
        in_credit = self._in_credit(call) & usable
        if not in_credit:  # credit only at closed workers: no refill, no waiting
            return loads.least(usable)
        if loads.unbalanced(self.options.balance_abs, self.options.balance_rel):
            return loads.least(in_credit)
        _, having = self._locality.match(call, usable)
        return loads.least(having & in_credit or in_credit)

    def _in_credit(self, call: Call) -> int:
        """``A`` of Algorithm 2: where every level of the call's path is in credit; never empty."""
        *above, client = self._path(call.client)
        mask, active = self._loads.all, self._active
        for credit in above:
            competes = active > credit.active  # with a sibling that has calls outstanding
            active = credit.active
            if credit.within(mask) != mask:
                quantum = self._quantum(call)
                if self.options.level_quantum == "clients":
                    quantum *= max(1, active)
                if not competes:
                    credit.forgive(quantum)
                elif not credit.within(mask):
                    credit.refill(quantum, mask)
                mask = credit.within(mask)
        if not client.within(mask):
            client.refill(self._quantum(call), mask)
        return client.within(mask)

    def _path(self, client: ClientPath) -> list[Credit]:
        """The deficits of the path, outermost level first; new ones are made."""
        found = self._paths.get(client)
        if found is not None:
            return found
        found = []
        for length in range(1, len(client) + 1):
            credit = self._credits.get(client[:length])
            if credit is None:
                if len(self._credits) >= self._sweep_at:
                    self._sweep(client)
                credit = self._credits[client[:length]] = Credit()
            found.append(credit)
        self._paths[client] = found
        return found

    def _quantum(self, call: Call) -> float:
        if self.options.quantum is not None:
            return self.options.quantum
        prompts = self.options.quantum_prompts
        if not self._prompts:
            return prompts * max(1, call.prompt_tokens)
        return prompts * max(1.0, self._prompt_sum / self._prompts)

    def dispatched(self, call: Call, worker_id: str, charge_factor: float) -> None:
        """Charge the prompt, count the call."""
        self._loads.dispatched(worker_id)
        slot = self._locality.workers.slot(worker_id)
        prompt = charge_factor * self.options.we * call.prompt_tokens
        path = self._path(call.client)
        if not self._prompts and self.options.quantum is None:
            for credit in path:  # their first quantum was in tokens: no charge factor was known
                credit.add((charge_factor - 1.0) * self._quantum(call))
        self._prompts += 1
        self._prompt_sum += prompt
        cost = prompt
        if self.options.cached_weight < 1:
            cached, _ = self._locality.match(call, 1 << slot)
            cost -= (1 - self.options.cached_weight) * charge_factor * self.options.we * cached
        begins = not path[-1].outstanding
        self._active += begins
        for credit in path:
            credit.charge(slot, cost)
            credit.outstanding += 1
            credit.active += begins

    def started(self, call_id: str) -> None:
        """Nothing depends on it."""

    def tick(self, now_s: float) -> None:
        """Nothing depends on time."""

    def finished(
        self, call: Call, worker_id: str | None, charge_factor: float, output_tokens: int
    ) -> None:
        """Charge the output, count the call no longer."""
        there = worker_id is not None and worker_id in self._loads.calls
        cost = charge_factor * self.options.wq * output_tokens
        path = self._path(call.client)
        ends = path[-1].outstanding == 1
        self._active -= ends
        for credit in path:
            if there and worker_id is not None:
                credit.charge(self._locality.workers.slot(worker_id), cost)
            credit.outstanding = max(0, credit.outstanding - 1)
            credit.active -= ends
        self._loads.finished(worker_id)

    def _sweep(self, but: ClientPath) -> None:
        """Forget clients who gain nothing by coming back at 0; ``but`` is being looked up."""
        self._credits = {
            client: credit
            for client, credit in self._credits.items()
            if not credit.harmless or client == but[: len(client)]
        }
        self._sweep_at = 2 * len(self._credits) + _SWEEP_MIN
        self._paths.clear()

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values."""
        return {
            "loads": self._loads.snapshot(),
            "credits": [[list(path), credit.snapshot()] for path, credit in self._credits.items()],
            "active": self._active,
            "prompts": self._prompts,
            "prompt_sum": self._prompt_sum,
            "sweep_at": self._sweep_at,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot; the locality was restored before."""
        self._loads.restore(state["loads"])
        self._credits = {tuple(path): Credit.restored(plain) for path, plain in state["credits"]}
        self._active = state["active"]
        self._paths = {}
        self._prompts = state["prompts"]
        self._prompt_sum = state["prompt_sum"]
        self._sweep_at = state["sweep_at"]
