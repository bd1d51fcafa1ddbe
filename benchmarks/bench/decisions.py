"""Cost of a D2LPM routing decision per call, and the memory of its tree.

A decision is everything that happens between a call and its worker: hash the prompt, match it
against the tree of all workers, select by match, credit and load, charge, and insert the prompt,
with the evictions that this causes. The parts are those that a dispatcher of the system ``d2lpm``
builds. The tree is in its steady state: it was filled before, and nearly each insertion evicts.
Older calls start, end and are forgotten outside the timed part, so that about 40 per worker are
outstanding. The mean is of CPU time over twenty consecutive decisions; percentiles are of wall
time, whose clock is fast to read.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median

from fairserve.benchmarks.bench.calls import OUTPUT_TOKENS, BenchCallSource
from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import cpu_ns, percentile, wall_ns
from fairserve.benchmarks.bench.prompts import PromptTrees
from fairserve.interactions.call import NO_TOKENS, Call
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.events import WorkerJoined
from fairserve.scheduling.registry import SYSTEMS

WORKER_TOKENS = 200_000
ROW = 20
"""Number of decisions between two readings of the CPU clock."""

OUTSTANDING = 40
"""Number of calls per worker that were placed and have not ended."""


class Decisions:
    """A router with a full tree. ``name`` is the figure of the mean, ``p99_name`` of the p99."""

    def __init__(
        self,
        name: str,
        workers: int,
        *,
        p99_name: str | None = None,
        worker_tokens: int = WORKER_TOKENS,
        clients: int = 100,
        outstanding: int = OUTSTANDING,
        decisions: int = 2000,
        prompts: PromptTrees | None = None,
        seed: int = 1,
    ) -> None:
        self._name, self._p99_name = name, p99_name
        self._decisions, self._most_outstanding = decisions, outstanding * workers
        self._source = BenchCallSource(seed, clients, prompts)
        dispatcher = Dispatcher(SYSTEMS["d2lpm"], seed=seed)
        self.worker_tokens = dict.fromkeys((f"worker-{n}" for n in range(workers)), worker_tokens)
        for worker, tokens in self.worker_tokens.items():
            dispatcher.handle(WorkerJoined(worker, tokens), 0.0)
        self.locality, self.router = dispatcher.first.locality, dispatcher.first.router
        self._open = dispatcher.first.worker_table.open
        self._outstanding: deque[tuple[Call, str]] = deque()
        self.calls_made = 0
        self._fill()

    def round(self) -> Reading:
        """Make the decisions of one round, in rows."""
        times_us: list[float] = []
        spent_ns = prompt_tokens = 0
        while len(times_us) < self._decisions:
            calls = [self._next() for _ in range(ROW)]
            prompt_tokens += sum(call.prompt_tokens for call in calls)
            placed = []
            begin_ns = cpu_ns()
            for call in calls:
                one_begin_ns = wall_ns()
                worker = self._choose(call)
                self._place(call, worker)
                times_us.append((wall_ns() - one_begin_ns) / 1000)
                placed.append((call, worker))
            spent_ns += cpu_ns() - begin_ns
            for call, worker in placed:
                self._keep(call, worker)
        figures = {self._name: spent_ns / len(times_us) / 1000}
        if self._p99_name is not None:
            figures[self._p99_name] = percentile(times_us, 0.99)
        details = {
            "p50_us": percentile(times_us, 0.5),
            "p99_us": percentile(times_us, 0.99),
            **self._parts(),
            "mean_prompt_tokens": prompt_tokens / len(times_us),
            "distinct_blocks": float(len(self.locality.tree)),
        }
        return Reading(figures, details)

    def _parts(self) -> dict[str, float]:
        """Return the median microseconds of the parts, from separate decisions."""
        rows = []
        for _ in range(max(1, self._decisions // 10)):
            call = self._next()
            times_ns = [wall_ns()]
            self.locality.register(call)
            times_ns.append(wall_ns())
            worker = self.router.select(call, self._open)
            assert worker is not None
            times_ns.append(wall_ns())
            self.router.dispatched(call, worker, 1.0)
            times_ns.append(wall_ns())
            self.locality.placed(call, worker)
            times_ns.append(wall_ns())
            rows.append([(end - begin) / 1000 for begin, end in pairwise(times_ns)])
            self._keep(call, worker)
        names = ("hash_us", "select_us", "charge_us", "insert_us")
        return {
            name: median(part) for name, part in zip(names, zip(*rows, strict=True), strict=True)
        }

    def _next(self) -> Call:
        self.calls_made += 1
        return self._source.call()

    def _choose(self, call: Call) -> str:
        self.locality.register(call)
        worker = self.router.select(call, self._open)
        assert worker is not None
        return worker

    def _place(self, call: Call, worker: str) -> None:
        self.router.dispatched(call, worker, 1.0)
        self.locality.placed(call, worker)

    def _keep(self, call: Call, worker: str) -> None:
        """Add a call in progress; older ones start and end."""
        call.token_ids = NO_TOKENS  # not read again
        self.router.started(call.call_id)
        self._outstanding.append((call, worker))
        while len(self._outstanding) > self._most_outstanding:
            older, at = self._outstanding.popleft()
            self.router.finished(older, at, 1.0, OUTPUT_TOKENS)
            self.locality.forget(older.call_id)

    def _fill(self) -> None:
        """Make decisions until each worker was sent more new tokens than it can hold."""
        sent = dict.fromkeys(self.worker_tokens, 0)
        room = sum(self.worker_tokens.values())
        while any(sent[worker] < tokens for worker, tokens in self.worker_tokens.items()):
            call = self._next()
            worker = self._choose(call)
            sent[worker] += call.prompt_tokens - self.locality.matched_tokens(call, [worker])
            self._place(call, worker)
            self._keep(call, worker)
            if sum(sent.values()) > 3 * room:
                break  # a worker that is hardly used does not block the rest
