"""Cost of a scheduling step of centralised DLPM, as the strawman does it and as it is built here.

A step: every worker has room for one call more. Before the strawman hands out anything it matches each
call of the global queue against each worker's tree and sorts, as the DLPM paper's section 5.1 says.
Then for every worker the walk takes a call, is charged for it, and the trees hear what that stores and
evicts; as many calls arrive, so that the queue keeps its length. This project's feeder finds the same
call in an index that follows the trees, and matches no queue: ``indexed`` is the step without that.

Weakness: the messages between workers and scheduler, for which workers wait, take no time here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fairserve.benchmarks.bench.calls import OUTPUT_TOKENS, CallSource
from fairserve.benchmarks.bench.decisions import Decisions
from fairserve.benchmarks.bench.measure import cpu_ns
from fairserve.interactions.call import NO_TOKENS, Call, TokenUsage
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeders.central_dlpm import CentralDlpm

CLIENTS = 100
RUNNING = 25
"""Calls of a worker that run, the paper's batch."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of CPU time."""

    match: float
    """Every queued call against every worker's tree, and sorting."""
    indexed: float
    """The rest of the step: arrivals, selections, charges, trees."""
    decision: float
    """Cost of D2LPM for one call, at the same number of workers."""


class CentralSteps:
    """A global queue of a constant length in front of workers whose trees are full."""

    def __init__(self, workers: int, queued: int, *, worker_tokens: int, seed: int) -> None:
        self._decisions = Decisions(
            "us", workers, worker_tokens=worker_tokens, clients=CLIENTS, decisions=100, seed=seed
        )
        self._locality = self._decisions.locality
        self._workers = list(self._decisions.worker_tokens)
        self._feeder = CentralDlpm(Directory(), self._locality)
        self._source = CallSource(seed + 1, CLIENTS)
        self._running: deque[tuple[Call, int]] = deque()
        """With the cached tokens."""
        for _ in range(queued):
            self._arrive(self._source.call())
        for _ in range(RUNNING):
            self._step()

    def __len__(self) -> int:
        """Calls in the global queue."""
        return len(self._feeder)

    def measure(self, steps: int) -> StepTimes:
        """Means of so many steps."""
        matching = rest = 0.0
        for _ in range(steps):
            matching += self._match()
            rest += self._step()
        decision_us = self._decisions.round().figures["us"]
        return StepTimes(matching / steps, rest / steps, decision_us / 1000)

    def _match(self) -> float:
        """The walk's order for each worker, found anew."""
        queue, matched_tokens = list(self._feeder.waiting()), self._locality.matched_tokens
        begin_ns = cpu_ns()
        for worker in self._workers:
            here = (worker,)
            order = [(matched_tokens(call, here), -place) for place, call in enumerate(queue)]
            order.sort(reverse=True)
        return (cpu_ns() - begin_ns) / 1e6

    def _step(self) -> float:
        """Arrivals, and a call for each worker."""
        feeder, locality = self._feeder, self._locality
        arrivals = [self._source.call() for _ in self._workers]
        begin_ns = cpu_ns()
        for call in arrivals:
            self._arrive(call)
        for worker in self._workers:
            open_workers = (worker,)
            taken = feeder.peek(open_workers)
            assert taken is not None
            cached_tokens = locality.matched_tokens(taken, open_workers)
            feeder.dispatch(taken.call_id, cached_tokens)
            locality.placed(taken, worker)
            self._running.append((taken, cached_tokens))
        spent_ms = (cpu_ns() - begin_ns) / 1e6
        self._end_older()
        return spent_ms

    def _arrive(self, call: Call) -> None:
        self._locality.register(call)
        self._feeder.add(call)

    def _end_older(self) -> None:
        while len(self._running) > RUNNING * len(self._workers):
            call, cached = self._running.popleft()
            call.token_ids = NO_TOKENS  # nobody reads them again
            usage = TokenUsage(call.input_tokens, call.system_tokens, cached, OUTPUT_TOKENS)
            self._feeder.finish(call.call_id, usage)
            self._locality.forget(call.call_id)
