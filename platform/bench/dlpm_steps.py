"""The local scheduler at work: one step of DLPM with a queue of a given length.

A step is what an engine does between two forward passes: eight calls arrive, the queue is walked in
order of matched prefix until the batch of 64 is full again (eight calls enter, their paths are locked),
their prompts are stored and others evicted, every running call is charged for what it decoded, and
eight calls end. All of it is timed, matching included. The cache is full, so each step changes the
matches of many waiting calls; the queue stays as long as it is.

Not timed: hashing, which an engine does once for each request when it comes in.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import fmean

from fairserve.interactions.call import client_id
from fairserve.platform.bench.calls import OUTPUT_TOKENS, CallSource
from fairserve.platform.bench.engine_cache import EngineCache
from fairserve.platform.bench.figure import Reading
from fairserve.platform.bench.measure import cpu_ns, percentile
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.prefix_tree import Node
from fairserve.scheduling.registry import LOCAL_SCHEDULERS

TURNOVER = 8
"""Calls that arrive, enter and end in a step."""
_PARTS = ("arrive", "walk", "store", "decode", "end")


class DlpmSteps:
    """An engine with a full batch and a queue."""

    def __init__(
        self,
        name: str,
        *,
        waiting: int,
        batch: int = 64,
        worker_tokens: int = 200_000,
        clients: int = 100,
        steps: int = 100,
        seed: int = 5,
    ) -> None:
        self._name, self._steps, self._batch = name, steps, batch
        self._capacity_tokens = worker_tokens
        self._source = CallSource(seed, clients)
        self._cache = EngineCache(seed, worker_tokens)
        self._scheduler = LOCAL_SCHEDULERS["dlpm"]()
        self._running: deque[tuple[LocalCall, Node, int]] = deque()
        """With the lock and the reserved tokens."""
        self._reserved_tokens = 0
        self.admitted_tokens = self.cached_tokens = 0
        for _ in range(waiting + batch - TURNOVER):
            self._scheduler.add(self._next())
        while self.admitted_tokens - self.cached_tokens < 2 * worker_tokens:
            self._step()

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._scheduler)

    def round(self) -> Reading:
        """So many steps, each timed by itself and in its parts."""
        self.admitted_tokens = self.cached_tokens = 0
        steps = [self._step() for _ in range(self._steps)]
        whole_us = [sum(step) for step in steps]
        details = {
            f"{part}_us": fmean(of_part)
            for part, of_part in zip(_PARTS, zip(*steps, strict=True), strict=True)
        }
        details["p99_us"] = percentile(whole_us, 0.99)
        details["waiting"] = float(len(self._scheduler))
        details["running"] = float(len(self._running))
        details["hit_rate"] = self.cached_tokens / max(1, self.admitted_tokens)
        return Reading({self._name: fmean(whole_us)}, details)

    def _step(self) -> tuple[float, ...]:
        """One step; returns the microseconds of its parts."""
        scheduler, cache, running = self._scheduler, self._cache, self._running
        ending = TURNOVER if len(running) >= self._batch - TURNOVER else 0
        arrivals = [self._next() for _ in range(TURNOVER)] if ending else []
        times_ns = [cpu_ns()]

        for call in arrivals:
            scheduler.add(call)
        times_ns.append(cpu_ns())

        admitted = self._walk()
        times_ns.append(cpu_ns())

        for call in admitted:
            cache.store(call)
        times_ns.append(cpu_ns())

        tokens = OUTPUT_TOKENS * TURNOVER // self._batch
        for call, _, _ in running:
            scheduler.decoded(call.call_id, tokens)
        times_ns.append(cpu_ns())

        for _ in range(ending):
            call, locked, reserved_tokens = running.popleft()
            self._reserved_tokens -= reserved_tokens
            scheduler.finish(call.call_id)
            cache.release(call, locked)
        times_ns.append(cpu_ns())
        return tuple((end - begin) / 1000 for begin, end in pairwise(times_ns))

    def _walk(self) -> list[LocalCall]:
        """Admit by the pull protocol until the batch is full."""
        scheduler, cache = self._scheduler, self._cache
        admitted: list[LocalCall] = []
        scheduler.start_pass(cache)
        while len(self._running) < self._batch and (call := scheduler.peek()) is not None:
            cached_tokens, _, _ = cache.match(call)
            needed = call.prompt_tokens - cached_tokens + call.max_output_tokens
            if self._reserved_tokens + needed > self._capacity_tokens:
                scheduler.skip()
                continue
            self._running.append((call, cache.lock(call), needed))
            self._reserved_tokens += needed
            scheduler.accept(cached_tokens)
            admitted.append(call)
            self.admitted_tokens += call.prompt_tokens
            self.cached_tokens += cached_tokens
        return admitted

    def _next(self) -> LocalCall:
        """A call whose keys are known to the cache; its token ids are not needed any more."""
        call = self._source.call()
        self._cache.register(call)
        return LocalCall(
            call.call_id, client_id(call.client), call.prompt_tokens, call.max_output_tokens
        )
