"""Workers of one model as control sees them: their waiting and held tokens.

Feed window (ALGORITHMS section 7, point 1): a worker is *open* while the prompt and expected output
tokens of the calls queued at it or in flight to it are below ``feed_window`` times its KV capacity;
the call that reaches the window is the last. Demand (section 4): per queued call the uncached prompt
plus expected output, per running call the tokens it holds. The open workers are a mask and demand
is a sum, both kept up to date: O(1) per event for any number of workers.

*Background calls* use what the others leave (:mod:`fairserve.scheduling.dispatch.background_room`). They
fill neither the feed window nor the demand, so that no other call is rejected because of their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.scheduling.dispatch.background_room import PEAK_S, BackgroundRoom
from fairserve.scheduling.locality.workers import Workers, WorkerSet


@dataclass(slots=True)
class Worker:
    """An engine replica, changed by its table only. ``epoch`` distinguishes successive joins."""

    worker_id: str
    epoch: int
    kv_capacity_tokens: int
    context_tokens: int
    """Maximum tokens of one call."""
    background: BackgroundRoom
    draining: bool = False
    last_report_s: float | None = None
    waiting_tokens: int = 0
    """Prompt + expected output tokens of dispatched calls that have not started."""
    demand_tokens: int = 0
    """Demand of all calls dispatched to the worker except background calls, in tokens."""
    calls: int = 0
    """Calls dispatched to the worker, background calls included."""
    sequences: int = 0
    """Sequences of all calls dispatched to the worker except background calls."""
    foreign_tokens: int = 0
    """Reported tokens held or awaited there by calls of others; they count as demand."""
    kind: str = ""
    """Kind of worker, which calls may require; empty: it serves every call."""
    bit: int = 0
    """The worker in masks."""


class WorkerTable:
    """Workers by id, in the order of joining. Masks are those of ``workers``."""

    def __init__(
        self,
        feed_window: float | None,
        workers: Workers,
        *,
        background_window: float = 0.5,
        background_calls: int = 8,
    ) -> None:
        self._background_window = background_window
        self._background_calls = background_calls
        self._feed_window = feed_window
        self._numbers = workers
        self._epoch = 0
        self.workers: dict[str, Worker] = {}
        self.serving = WorkerSet(workers, 0)
        """Workers that take calls; read-only."""
        self.open = WorkerSet(workers, 0)
        """Workers that take calls and whose window is not full; read-only."""
        self._of_kind: Counter[str] = Counter()
        """Masks of all workers, by kind."""
        self.context_tokens = 0
        """Maximum tokens of one call at any worker; the last known value if there are no workers."""
        self._demand_tokens = 0
        """Demand over the workers that take calls, like the capacity."""
        self._capacity_tokens = 0
        self._period_began_s: float | None = None

    def join(
        self,
        worker_id: str,
        kv_capacity_tokens: int,
        context_tokens: int | None = None,
        kind: str = "",
        slots: int | None = None,
    ) -> Worker:
        """Add a worker. Raises ValueError if it has joined already, or has no capacity.

        ``slots`` are the sequences that it runs at a time; None if that is unknown.
        """
        if worker_id in self.workers:
            raise ValueError(f"worker {worker_id!r} has joined already")
        if kv_capacity_tokens < 1:
            raise ValueError(f"kv_capacity_tokens is {kv_capacity_tokens}; allowed: 1 or more")
        if slots is not None and slots < 1:
            raise ValueError(f"slots is {slots}; allowed: 1 or more")
        self._epoch += 1
        longest = min(context_tokens or kv_capacity_tokens, kv_capacity_tokens)
        room = BackgroundRoom(
            kv_capacity_tokens, slots, self._background_window, self._background_calls
        )
        worker = Worker(worker_id, self._epoch, kv_capacity_tokens, longest, room, kind=kind)
        self._enter(worker)
        return worker

    def _enter(self, worker: Worker) -> None:
        self.workers[worker.worker_id] = worker
        worker.bit = 1 << self._numbers.slot(worker.worker_id)
        self._of_kind[worker.kind] |= worker.bit
        self.context_tokens = max(each.context_tokens for each in self.workers.values())
        if not worker.draining:
            self._serve(worker)

    def _serve(self, worker: Worker) -> None:
        self.serving = WorkerSet(self._numbers, self.serving.mask | worker.bit)
        self._demand_tokens += worker.demand_tokens + worker.foreign_tokens
        self._capacity_tokens += worker.kv_capacity_tokens
        self._update_open(worker)

    def drain(self, worker: Worker) -> None:
        """Stop a worker from taking calls; its current calls still count."""
        if not worker.draining:
            worker.draining = True
            self._leave(worker)

    def undrain(self, worker: Worker) -> None:
        """Let a drained worker take calls again."""
        if worker.draining:
            worker.draining = False
            self._serve(worker)

    def lose(self, worker: Worker) -> None:
        """Remove a worker."""
        del self.workers[worker.worker_id]
        self._of_kind[worker.kind] &= ~worker.bit
        if not worker.draining:
            self._leave(worker)

    def _leave(self, worker: Worker) -> None:
        self.serving = WorkerSet(self._numbers, self.serving.mask & ~worker.bit)
        self.open = WorkerSet(self._numbers, self.open.mask & ~worker.bit)
        self._demand_tokens -= worker.demand_tokens + worker.foreign_tokens
        self._capacity_tokens -= worker.kv_capacity_tokens

    def report(self, worker: Worker, foreign_tokens: int, now_s: float) -> None:
        """Record a report of a live worker. Raises ValueError if ``foreign_tokens`` is negative."""
        if foreign_tokens < 0:
            raise ValueError(f"foreign_tokens is {foreign_tokens}; allowed: 0 or more")
        worker.last_report_s = now_s
        more, worker.foreign_tokens = foreign_tokens - worker.foreign_tokens, foreign_tokens
        worker.background.others(worker.demand_tokens + foreign_tokens, worker.sequences)
        if not worker.draining:
            self._demand_tokens += more

    def add_demand(self, worker: Worker, tokens: int, sequences: int = 0) -> None:
        """Add tokens held by a worker's calls, and sequences; negative to release them."""
        worker.demand_tokens += tokens
        worker.sequences += sequences
        if tokens > 0:
            held_tokens = worker.demand_tokens + worker.foreign_tokens
            worker.background.others(held_tokens, worker.sequences)
        if not worker.draining:
            self._demand_tokens += tokens

    def add_waiting(self, worker: Worker, tokens: int) -> None:
        """Add waiting tokens of a worker, possibly negative."""
        worker.waiting_tokens += tokens
        if not worker.draining:
            self._update_open(worker)

    def _update_open(self, worker: Worker) -> None:
        window_tokens = self.window_tokens(worker)
        is_open = window_tokens is None or worker.waiting_tokens < window_tokens
        if is_open != bool(self.open.mask & worker.bit):
            self.open = WorkerSet(self._numbers, self.open.mask ^ worker.bit)

    def window_tokens(self, worker: Worker) -> float | None:
        """Return the tokens of waiting calls with which a worker is full; None without a window."""
        window = self._feed_window
        return None if window is None else window * worker.kv_capacity_tokens

    def spare(self, tokens: int, sequences: int) -> WorkerSet:
        """Return the workers that may get a background call that can hold this much.

        Cost: a few comparisons for each worker, and nothing while no background call waits.
        """
        mask = 0
        for worker in self.workers.values():
            if (
                not worker.draining
                and worker.waiting_tokens <= 0
                and worker.background.fits(tokens, sequences)
            ):
                mask |= worker.bit
        return WorkerSet(self._numbers, mask)

    def background_rooms(self, mask: int) -> Iterator[BackgroundRoom]:
        """Yield the rooms for background calls of those of the workers that take calls."""
        for worker in self.workers.values():
            if not worker.draining and mask & worker.bit:
                yield worker.background

    def tick(self, now_s: float) -> None:
        """Begin a new period of the workers' peaks if the last one is over. O(workers) then."""
        began_s = self._period_began_s
        if began_s is not None and now_s - began_s < PEAK_S:
            return
        self._period_began_s = now_s
        for worker in self.workers.values():
            worker.background.next_period(
                worker.demand_tokens + worker.foreign_tokens, worker.sequences
            )

    def able(self, kinds: Collection[str]) -> int:
        """Return the mask of the workers that can serve calls requiring one of these kinds."""
        mask = self._of_kind[""]
        for kind in kinds:
            mask |= self._of_kind[kind]
        return mask

    def load(self, queued_tokens: int) -> tuple[int, int]:
        """Return demand and capacity over the workers that take calls, including the queue's demand."""
        return queued_tokens + self._demand_tokens, self._capacity_tokens

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        workers = []
        for worker in self.workers.values():
            plain = asdict(worker)
            del plain["bit"]
            last_s = plain.pop("last_report_s")
            plain["report_age_s"] = None if last_s is None else age_of(last_s, now_s)
            workers.append(plain)
        began_s = self._period_began_s
        return {
            "epoch": self._epoch,
            "workers": workers,
            "context_tokens": self.context_tokens,
            "period_age_s": None if began_s is None else age_of(began_s, now_s),
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot; the workers' numbers must be restored before."""
        self._epoch = state["epoch"]
        age = state["period_age_s"]
        self._period_began_s = None if age is None else time_of(age, now_s)
        self.workers = {}
        self._of_kind.clear()
        self.serving = self.open = WorkerSet(self._numbers, 0)
        self._demand_tokens = self._capacity_tokens = 0
        for plain in state["workers"]:
            values = dict(plain)
            age = values.pop("report_age_s")
            values["last_report_s"] = None if age is None else time_of(age, now_s)
            room = {"window": self._background_window, "most_calls": self._background_calls}
            values["background"] = BackgroundRoom(**{**values["background"], **room})
            self._enter(Worker(**values))
        self.context_tokens = state["context_tokens"]
