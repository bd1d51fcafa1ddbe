"""The workers that serve one model, as control sees them: what waits at them, what they hold.

Feed window (ALGORITHMS section 7, point 1): a worker is *open* while the prompt and expected output
tokens of the calls that are queued at or in flight to it stay below ``feed_window`` times its KV
capacity; the call that reaches the window is the last. Demand (section 4): per call the uncached
prompt plus expected output while it is queued, the tokens it holds once it runs. The open workers are
a mask and demand is a sum, both kept up to date: O(1) per event, however many workers there are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fairserve.scheduling.workers import Workers, WorkerSet


@dataclass(slots=True)
class Worker:
    """One engine replica, changed by its pool. ``epoch`` tells apart its lives if it comes back."""

    worker_id: str
    epoch: int
    kv_capacity_tokens: int
    draining: bool = False
    last_report_s: float | None = None
    waiting_tokens: int = 0
    """Prompt + expected output of calls dispatched to it that have not started."""
    demand_tokens: int = 0
    """Demand of all calls dispatched to it."""
    calls: int = 0


class Pool:
    """Workers by id, in the order of joining. Masks are those of ``workers``."""

    def __init__(self, feed_window: float | None, workers: Workers) -> None:
        self._feed_window = feed_window
        self._numbers = workers
        self._epoch = 0
        self.workers: dict[str, Worker] = {}
        self._serving = 0
        """Mask of the workers that take calls."""
        self._open = 0
        """Mask of those of them whose window is not full."""
        self._demand_tokens = 0
        """Over the workers that take calls, as is the capacity."""
        self._capacity_tokens = 0

    def join(self, worker_id: str, kv_capacity_tokens: int) -> Worker:
        """A worker joins. Raises ValueError if it is here, or has no capacity."""
        if worker_id in self.workers:
            raise ValueError(f"worker {worker_id!r} has joined already")
        if kv_capacity_tokens < 1:
            raise ValueError(f"kv_capacity_tokens is {kv_capacity_tokens}; allowed: 1 or more")
        self._epoch += 1
        worker = Worker(worker_id, self._epoch, kv_capacity_tokens)
        self._enter(worker)
        return worker

    def _enter(self, worker: Worker) -> None:
        self.workers[worker.worker_id] = worker
        if not worker.draining:
            self._serving |= 1 << self._numbers.slot(worker.worker_id)
            self._demand_tokens += worker.demand_tokens
            self._capacity_tokens += worker.kv_capacity_tokens
            self._update_open(worker)

    def drain(self, worker: Worker) -> None:
        """It takes no more calls; those it has still count as its own."""
        if not worker.draining:
            worker.draining = True
            self._leave(worker)

    def lose(self, worker: Worker) -> None:
        """It is gone."""
        del self.workers[worker.worker_id]
        if not worker.draining:
            self._leave(worker)

    def _leave(self, worker: Worker) -> None:
        bit = 1 << self._numbers.slot(worker.worker_id)
        self._serving &= ~bit
        self._open &= ~bit
        self._demand_tokens -= worker.demand_tokens
        self._capacity_tokens -= worker.kv_capacity_tokens

    def get(self, worker_id: str, epoch: int) -> Worker | None:
        """The worker, if it still lives the same life."""
        worker = self.workers.get(worker_id)
        return worker if worker is not None and worker.epoch == epoch else None

    def add_demand(self, worker: Worker, tokens: int) -> None:
        """Its calls hold so many more tokens, or fewer."""
        worker.demand_tokens += tokens
        if not worker.draining:
            self._demand_tokens += tokens

    def add_waiting(self, worker: Worker, tokens: int) -> None:
        """So many more tokens wait at it, or fewer."""
        worker.waiting_tokens += tokens
        if not worker.draining:
            self._update_open(worker)

    def _update_open(self, worker: Worker) -> None:
        window = self._feed_window
        bit = 1 << self._numbers.slot(worker.worker_id)
        if window is None or worker.waiting_tokens < window * worker.kv_capacity_tokens:
            self._open |= bit
        else:
            self._open &= ~bit

    def serving(self) -> WorkerSet:
        """Workers that take calls."""
        return WorkerSet(self._numbers, self._serving)

    def open(self) -> WorkerSet:
        """Workers that take calls and whose window is not full."""
        return WorkerSet(self._numbers, self._open)

    @property
    def any_open(self) -> bool:
        """Whether a worker is open."""
        return self._open != 0

    def load(self, queued_tokens: int) -> tuple[int, int]:
        """Demand and capacity over the workers that take calls, the queue's demand included."""
        return queued_tokens + self._demand_tokens, self._capacity_tokens

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """State as plain JSON values; ages, not times."""
        workers = []
        for worker in self.workers.values():
            plain = asdict(worker)
            last_s = plain.pop("last_report_s")
            plain["report_age_s"] = None if last_s is None else now_s - last_s
            workers.append(plain)
        return {"epoch": self._epoch, "workers": workers}

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot; the workers' numbers were restored before."""
        self._epoch = state["epoch"]
        self.workers = {}
        self._serving = self._open = self._demand_tokens = self._capacity_tokens = 0
        for plain in state["workers"]:
            values = dict(plain)
            age_s = values.pop("report_age_s")
            values["last_report_s"] = None if age_s is None else now_s - age_s
            self._enter(Worker(**values))
