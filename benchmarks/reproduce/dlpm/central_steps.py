"""Cost of a scheduling step of centralised DLPM, as in the paper's strawman and as built here.

In a step every worker has room for one more call. Before dispatching, the strawman matches each
call of the global queue against each worker's tree and sorts, as described in the DLPM paper's
section 5.1. Then for every worker the walk takes a call, charges it, and the trees receive the
stored and evicted blocks; as many calls arrive, so that the length of the queue is constant. This
project's feeder finds the same call in an index that follows the trees, and matches no queue:
``indexed`` is the step without matching.

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
"""Number of running calls per worker, the paper's batch."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of CPU time."""

    match: float
    """Matching of every queued call against every worker's tree, and sorting."""
    indexed: float
    """Rest of the step: arrivals, selections, charges, trees."""
    decision: float
    """Cost of D2LPM for one call, with the same number of workers."""


class CentralSteps:
    """A global queue of constant length in front of workers with full trees."""

    def __init__(self, workers: int, queued: int, *, worker_tokens: int, seed: int) -> None:
        self._decisions = Decisions(
            "us", workers, worker_tokens=worker_tokens, clients=CLIENTS, decisions=100, seed=seed
        )
        self._locality = self._decisions.locality
        self._workers = list(self._decisions.worker_tokens)
        self._feeder = CentralDlpm(Directory(), self._locality)
        self._source = CallSource(seed + 1, CLIENTS)
        self._running: deque[tuple[Call, int]] = deque()
        """Running calls with their cached tokens."""
        for _ in range(queued):
            self._arrive(self._source.call())
        for _ in range(RUNNING):
            self._step()

    def __len__(self) -> int:
        """Return the number of calls in the global queue."""
        return len(self._feeder)

    def measure(self, steps: int) -> StepTimes:
        """Return means over this many steps."""
        matching = rest = 0.0
        for _ in range(steps):
            matching += self._match()
            rest += self._step()
        decision_us = self._decisions.round().figures["us"]
        return StepTimes(matching / steps, rest / steps, decision_us / 1000)

    def _match(self) -> float:
        """Compute the walk's order for each worker from scratch."""
        queue, matched_tokens = list(self._feeder.waiting()), self._locality.matched_tokens
        begin_ns = cpu_ns()
        for worker in self._workers:
            here = (worker,)
            order = [(matched_tokens(call, here), -place) for place, call in enumerate(queue)]
            order.sort(reverse=True)
        return (cpu_ns() - begin_ns) / 1e6

    def _step(self) -> float:
        """Add arrivals, and dispatch a call to each worker."""
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
            call.token_ids = NO_TOKENS  # not read again
            usage = TokenUsage(call.input_tokens, call.system_tokens, cached, OUTPUT_TOKENS)
            self._feeder.finish(call.call_id, usage)
            self._locality.forget(call.call_id)
