"""Decentralised DLPM (DLPM paper, Algorithm 2; "DoubleQ" in its earlier version).

``q[i, w]`` is the deficit of client i at worker w, ``s_w`` the worker's outstanding calls. The lines of
Algorithm 2 and their methods:

    3-9    SelectWorker(G, i): A = {w: q[i, w] > 0}; while A is empty,           D2lpm.select
           q[i, w] += Q^w for all w; of G and A, else of A, the smallest s_w
    13     G = the workers with the longest match                                Locality.match
    14-15  w = SelectWorker(G, i), dispatch                                      the dispatcher's feed
    16-17  q[i, w] -= we * input tokens; s_w += 1                                D2lpm.dispatched
    18     insert the prompt for w                                               Locality.placed
    21-23  at the end: q[i, w] -= wq * output tokens; s_w -= 1                   D2lpm.finished
    26-27  a prefix was evicted at w                                             Reports.take

With levels (ALGORITHMS sections 0 and 6) every level of the client's path has separate deficits: a
call may go where all of them are in credit, every charge goes to the whole path, and a level is
refilled when it has no credit at any worker where the outer levels have credit. An outer level
applies only while one of its siblings has outstanding calls, too: without competition no fairness
is needed. With equal quanta a tenant of many users would leave the worker with their prefix after a
few calls, so by default (``level_quantum``) the quantum of an outer level is multiplied by its
clients with outstanding calls. The feeder and the workers decide the shares, not this router.

With a feed window only *open* workers can be chosen (ALGORITHMS section 7, point 2): if the client
has credit only at closed ones, the least loaded open worker is chosen without a refill. A debt that
grows there is limited to a quantum before each such call: a client owes nothing for capacity that it
used while its other workers were full, or of another kind than its calls need. Charges are
multiplied by the call's charge factor. Weaknesses: the fairness bound grows with the number of
workers and holds only for clients backlogged at all of them (Theorem 5.1); a client without credit
leaves the worker that holds its runs' contexts, and one with credit stays at a crowded worker.
Behind a feeder, which decides the shares, the default routes by cache and load alone (decision 8).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fairserve.interactions.call import Call, ClientPath
from fairserve.scheduling.fairness.credit import Credit
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.routers.d2lpm_options import D2lpmOptions
from fairserve.scheduling.routers.loads import Loads

_SWEEP_MIN = 1024
"""Minimum number of new levels between two sweeps of idle ones."""


class D2lpm:
    """The cluster router. Cost: O(levels + log blocks) per call, O(workers used) per refill."""

    def __init__(self, locality: Locality, options: D2lpmOptions = D2lpmOptions()) -> None:
        self.options = options
        self._locality = locality
        self._loads = Loads(locality.workers)
        self._credits: dict[ClientPath, Credit] = {}
        """Deficits by path, outer levels included."""
        self._paths: dict[ClientPath, list[Credit]] = {}
        """Deficits along the path of each client used since the last sweep."""
        self._active = 0
        """Number of clients with outstanding calls."""
        self._prompts = 0
        self._prompt_sum = 0.0
        self._sweep_at = _SWEEP_MIN

    # --- Algorithm 2 ------------------------------------------------------------------------------

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Return an open worker (lines 3-9 and 13); refill if the client is in credit at no worker."""
        loads = self._loads
        usable = self._locality.workers.mask(open_workers) & loads.all
        if not usable:
            return None
        in_credit = self._in_credit(call) & usable
        if not in_credit:  # credit only at closed workers: neither refill nor wait
            for credit in self._path(call.client):
                credit.limit_debt(self._level_quantum(call, credit.active), usable)
            return loads.least(usable)
        _, having = self._locality.match(call, usable)
        return loads.least(having & in_credit or in_credit)  # lines 7-9

    def _in_credit(self, call: Call) -> int:
        """Return A, the workers where all levels of the path are in credit (lines 4-6); never empty."""
        *above, client = self._path(call.client)
        mask, active = self._loads.all, self._active
        for credit in above:
            competes = active > credit.active  # a sibling has outstanding calls
            active = credit.active
            if credit.within(mask) != mask:
                quantum = self._level_quantum(call, active)
                if not competes:
                    credit.forgive(quantum)
                elif not credit.within(mask):
                    credit.refill(quantum, mask)
                mask = credit.within(mask)
        if not client.within(mask):
            client.refill(self._quantum(call), mask)
        return client.within(mask)

    def dispatched(self, call: Call, worker_id: str, charge_factor: float) -> None:
        """Charge the prompt and count the call (lines 16-17)."""
        self._loads.dispatched(worker_id)
        slot = self._locality.workers.slot(worker_id)
        prompt = charge_factor * self.options.we * call.prompt_tokens
        path = self._path(call.client)
        if not self._prompts and self.options.quantum is None:
            for credit in path:  # the first quantum was in tokens: no charge factor was known
                credit.add((charge_factor - 1.0) * self._quantum(call))
        self._prompts += 1
        self._prompt_sum += prompt
        begins = not path[-1].outstanding
        self._active += begins
        for credit in path:
            credit.charge(slot, prompt)
            credit.outstanding += 1
            credit.active += begins

    def finished(
        self, call: Call, worker_id: str | None, charge_factor: float, output_tokens: int
    ) -> None:
        """Charge the output and stop counting the call (lines 21-23)."""
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

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """Add a worker; each client starts there with its deficit at its best worker."""
        others = self._loads.all
        self._loads.add_worker(worker_id, calls)
        slot = self._locality.workers.slot(worker_id)
        for credit in self._credits.values():
            credit.join(slot, others)

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker and every client's deficit there."""
        if worker_id not in self._loads.calls:
            return
        self._loads.remove_worker(worker_id)
        slot = self._locality.workers.slot(worker_id)
        for credit in self._credits.values():
            credit.leave(slot)

    # --- deficits ---------------------------------------------------------------------------------

    def deficit(self, client: ClientPath, worker_id: str) -> float:
        """Return ``q[i, w]`` of a client or an outer level; 0 if client or worker is unknown."""
        credit = self._credits.get(client)
        if credit is None or worker_id not in self._loads.calls:
            return 0.0
        return credit.value(self._locality.workers.slot(worker_id))

    def credits(self, path: ClientPath) -> Mapping[str, float]:
        """Return ``q[i, w]`` by worker, as of the last refill."""
        credit = self._credits.get(path)
        if credit is None:
            return {}
        slot = self._locality.workers.slot
        return {worker_id: credit.value(slot(worker_id)) for worker_id in self._loads.calls}

    def _path(self, client: ClientPath) -> list[Credit]:
        """Return the deficits of the path, outermost level first; missing ones are created."""
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

    def _level_quantum(self, call: Call, active: int) -> float:
        """Return the quantum of a level with this many active clients at or below it."""
        clients = active if self.options.level_quantum == "clients" else 1
        return self._quantum(call) * max(1, clients)

    def _quantum(self, call: Call) -> float:
        if self.options.quantum is not None:
            return self.options.quantum
        prompts = self.options.quantum_prompts
        if not self._prompts:
            return prompts * max(1, call.prompt_tokens)
        return prompts * max(1.0, self._prompt_sum / self._prompts)

    def _sweep(self, but: ClientPath) -> None:
        """Forget clients for which a restart at 0 is no gain, except ``but``."""
        self._credits = {
            client: credit
            for client, credit in self._credits.items()
            if not credit.harmless or client == but[: len(client)]
        }
        self._sweep_at = 2 * len(self._credits) + _SWEEP_MIN
        self._paths.clear()

    # --- unused events -----------------------------------------------------------------------------

    def started(self, call_id: str) -> None:
        """Do nothing: this router does not use it."""

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "loads": self._loads.snapshot(),
            "credits": [[list(path), credit.snapshot()] for path, credit in self._credits.items()],
            "active": self._active,
            "prompts": self._prompts,
            "prompt_sum": self._prompt_sum,
            "sweep_at": self._sweep_at,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot; the locality must be restored before."""
        self._loads.restore(state["loads"])
        self._credits = {tuple(path): Credit.restored(plain) for path, plain in state["credits"]}
        self._active = state["active"]
        self._paths = {}
        self._prompts = state["prompts"]
        self._prompt_sum = state["prompt_sum"]
        self._sweep_at = state["sweep_at"]
