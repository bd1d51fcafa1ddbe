"""Cost of one step of DLPM, the local scheduler, with a queue of a given length.

A step is the work of a scheduler before a forward pass (ALGORITHMS section 5, points 1 to 4): eight
calls arrive, it receives the events of blocks stored and evicted since the last step, and walks the
queue in the order of matched prefix until the batch of 64 is full again (eight calls enter). All of
this is timed, including the matching of waiting calls. The cache is full, so each step changes the
matches of waiting calls, occasionally those of thousands, when the trunk that they share is stored
or evicted. The length of the queue stays constant.

Timed separately: charging the tokens that the 64 running calls decoded (``decode_us``), the ends of
eight (``end_us``), and the engine's work with any scheduler (``engine_us``): for the entering
calls, the look-up, lock, insertion and eviction of their blocks, for which ``prefix_cache_us`` is
the figure. Not timed: hashing, once per request on arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from statistics import fmean

from fairserve.benchmarks.bench.calls import OUTPUT_TOKENS, BenchCallSource
from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import cpu_ns, percentile
from fairserve.engine.block_prefix_cache import BlockPrefixCache
from fairserve.interactions.call import Call, client_id
from fairserve.scheduling.base import CacheListener, LocalCall
from fairserve.scheduling.locality.block_keys import BlockHasher
from fairserve.scheduling.locality.prefix_node import PrefixNode
from fairserve.scheduling.registry import LOCAL_SCHEDULERS

_BLOCK_TOKENS = 16


class EngineCache(BlockPrefixCache):
    """A prefix cache with a bounded number of tokens, whose block events are collected.

    :meth:`publish` sends them, so that the scheduler's work on them is timed apart from the cache's.
    """

    def __init__(self, seed: int, capacity_tokens: int) -> None:
        super().__init__(capacity_tokens, _BLOCK_TOKENS)
        self._hasher = BlockHasher(seed, _BLOCK_TOKENS)
        self._gathered: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def hash_and_register(self, call: Call) -> None:
        """Compute the keys of a call that is about to wait."""
        self.register(call.call_id, self._hasher.keys(call.token_ids, call.salt))

    def follow(self, listener: CacheListener) -> None:
        """Subscribe as the base does; events are delayed until :meth:`publish`."""
        super().follow(_Gatherer(listener, self._gathered))

    def publish(self) -> None:
        """Publish the collected events."""
        for notify, arguments in self._gathered:
            notify(*arguments)
        self._gathered.clear()


class _Gatherer:
    def __init__(
        self,
        listener: CacheListener,
        gathered: list[tuple[Callable[..., None], tuple[object, ...]]],
    ) -> None:
        self._listener, self._gathered = listener, gathered

    def changed(self, name: Hashable, beyond_tokens: int = -1) -> None:
        self._gathered.append((self._listener.changed, (name, beyond_tokens)))

    def renamed(self, name: Hashable, other: Hashable, up_to_tokens: int) -> None:
        self._gathered.append((self._listener.renamed, (name, other, up_to_tokens)))


TURNOVER = 8
"""Number of calls that arrive, enter and end in a step."""
_PARTS = ("arrive", "walk", "events", "decode", "end", "engine")
_OWN_PARTS = 3
"""Number of leading parts that form the step."""


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
        self._source = BenchCallSource(seed, clients)
        self._cache = EngineCache(seed, worker_tokens)
        self._scheduler = LOCAL_SCHEDULERS["dlpm"]()
        self._running: deque[tuple[LocalCall, PrefixNode, int]] = deque()
        """Running calls, each with its lock and reserved tokens."""
        self._reserved_tokens = 0
        self.admitted_tokens = self.cached_tokens = 0
        for _ in range(waiting + batch - TURNOVER):
            self._scheduler.add(self._next())
        while self.admitted_tokens - self.cached_tokens < 2 * worker_tokens:
            self._step()

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self._scheduler)

    def round(self) -> Reading:
        """Run the steps of one round, each timed as a whole and in parts."""
        self.admitted_tokens = self.cached_tokens = 0
        steps = [self._step() for _ in range(self._steps)]
        whole_us = [sum(step[:_OWN_PARTS]) for step in steps]
        details = {
            f"{part}_us": fmean(of_part)
            for part, of_part in zip(_PARTS, zip(*steps, strict=True), strict=True)
        }
        details["p50_us"] = percentile(whole_us, 0.5)
        details["p99_us"] = percentile(whole_us, 0.99)
        details["waiting"] = float(len(self._scheduler))
        details["running"] = float(len(self._running))
        details["hit_rate"] = self.cached_tokens / max(1, self.admitted_tokens)
        return Reading({self._name: fmean(whole_us)}, details)

    def _step(self) -> tuple[float, ...]:
        """Run one step; return the microseconds of its parts."""
        scheduler, cache, running = self._scheduler, self._cache, self._running
        ending = TURNOVER if len(running) >= self._batch - TURNOVER else 0
        arrivals = [self._next() for _ in range(TURNOVER)] if ending else []
        begin_ns = cpu_ns()
        for call in arrivals:
            scheduler.add(call)
        arrived_ns = cpu_ns()

        admitted, engine_ns = self._walk()
        walked_ns = cpu_ns()

        for call in admitted:
            cache.store(call.call_id)
        stored_ns = cpu_ns()
        cache.publish()
        told_ns = cpu_ns()

        tokens = OUTPUT_TOKENS * TURNOVER // self._batch
        for call, _, _ in running:
            scheduler.decoded(call.call_id, tokens)
        decoded_ns = cpu_ns()

        ended = [running.popleft() for _ in range(ending)]
        for call, _, _ in ended:
            scheduler.finish(call.call_id)
        end_ns = cpu_ns()
        for call, locked, reserved_tokens in ended:
            self._reserved_tokens -= reserved_tokens
            cache.unlock(locked)
            cache.forget(call.call_id)
        parts_ns = (
            arrived_ns - begin_ns,
            walked_ns - arrived_ns - engine_ns,
            told_ns - stored_ns,
            decoded_ns - told_ns,
            end_ns - decoded_ns,
            engine_ns + stored_ns - walked_ns,
        )
        return tuple(part_ns / 1000 for part_ns in parts_ns)

    def _walk(self) -> tuple[list[LocalCall], int]:
        """Admit by the pull protocol until the batch is full; also return the engine's nanoseconds."""
        scheduler, cache = self._scheduler, self._cache
        admitted: list[LocalCall] = []
        engine_ns = 0
        scheduler.start_pass(cache)
        while len(self._running) < self._batch and (call := scheduler.peek()) is not None:
            begin_ns = cpu_ns()
            cached_tokens, _, _ = cache.match(call)
            needed = call.prompt_tokens - cached_tokens + call.max_output_tokens
            fits = self._reserved_tokens + needed <= self._capacity_tokens
            if fits:
                self._running.append((call, cache.lock(call.call_id), needed))
                self._reserved_tokens += needed
                self.admitted_tokens += call.prompt_tokens
                self.cached_tokens += cached_tokens
                admitted.append(call)
            engine_ns += cpu_ns() - begin_ns
            if fits:
                scheduler.accept(cached_tokens)
            else:
                scheduler.skip()
        return admitted, engine_ns

    def _next(self) -> LocalCall:
        """Return a call whose keys are known to the cache; its token ids are no longer needed."""
        call = self._source.call()
        self._cache.hash_and_register(call)
        return LocalCall(
            call.call_id, client_id(call.client), call.prompt_tokens, call.max_output_tokens
        )
