"""The workers that serve one model, as control sees them: what waits at them, what they hold.

Feed window (ALGORITHMS section 7, point 1): a worker is *open* while the prompt and expected output
tokens of the calls that are queued at or in flight to it stay below ``feed_window`` times its KV
capacity; the call that reaches the window is the last. Demand (section 4): per call the uncached
prompt plus expected output while it is queued, the tokens it holds once it runs. All O(1) per event.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Worker:
    """One engine replica. ``epoch`` tells apart the lives of a worker that comes back."""

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
    """Workers by id, in the order of joining."""

    def __init__(self, feed_window: float | None) -> None:
        self._feed_window = feed_window
        self._epoch = 0
        self.workers: dict[str, Worker] = {}

    def join(self, worker_id: str, kv_capacity_tokens: int) -> Worker:
        """A worker joins. Raises ValueError if it is here, or has no capacity."""
        if worker_id in self.workers:
            raise ValueError(f"worker {worker_id!r} has joined already")
        if kv_capacity_tokens < 1:
            raise ValueError(f"kv_capacity_tokens is {kv_capacity_tokens}; allowed: 1 or more")
        self._epoch += 1
        worker = Worker(worker_id, self._epoch, kv_capacity_tokens)
        self.workers[worker_id] = worker
        return worker

    def get(self, worker_id: str, epoch: int) -> Worker | None:
        """The worker, if it still lives the same life."""
        worker = self.workers.get(worker_id)
        return worker if worker is not None and worker.epoch == epoch else None

    def serving(self) -> list[str]:
        """Workers that take calls."""
        return [w.worker_id for w in self.workers.values() if not w.draining]

    def open(self) -> list[str]:
        """Workers that take calls and whose window is not full."""
        window = self._feed_window
        return [
            w.worker_id
            for w in self.workers.values()
            if not w.draining
            and (window is None or w.waiting_tokens < window * w.kv_capacity_tokens)
        ]

    def load(self, queued_tokens: int) -> tuple[int, int]:
        """Demand and capacity over the workers that take calls, the queue's demand included."""
        demand, capacity = queued_tokens, 0
        for worker in self.workers.values():
            if not worker.draining:
                demand += worker.demand_tokens
                capacity += worker.kv_capacity_tokens
        return demand, capacity

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
        """Replace the state by an earlier snapshot."""
        self._epoch = state["epoch"]
        self.workers = {}
        for plain in state["workers"]:
            values = dict(plain)
            age_s = values.pop("report_age_s")
            values["last_report_s"] = None if age_s is None else now_s - age_s
            self.workers[values["worker_id"]] = Worker(**values)
