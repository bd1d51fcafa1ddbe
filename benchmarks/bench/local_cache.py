"""Cost of one worker's prefix cache: match, lock, insert, unlock, evict.

This is the work of an engine with a block-hash cache per call, including hashing of the prompt:
look up the cached part, lock that path, insert the prompt once it is computed (which evicts, as the
cache is full), and unlock an ended call, so that about 64 calls run.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean

from fairserve.benchmarks.bench.calls import BenchCallSource
from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import cpu_ns, percentile
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.prefix_node import PrefixNode

FIGURE = "prefix_cache_us"
WORKER = "worker"


class LocalCache:
    """A full cache of one worker."""

    def __init__(
        self,
        *,
        worker_tokens: int = 400_000,
        running: int = 64,
        calls: int = 2000,
        seed: int = 2,
    ) -> None:
        self._calls, self._most_running = calls, running
        self._source = BenchCallSource(seed)
        self.locality = Locality(seed)
        self.locality.add_worker(WORKER, worker_tokens)
        self._mask = self.locality.tree.mask([WORKER])
        self._running: deque[tuple[str, PrefixNode]] = deque()
        """Ids of running calls, each with the node returned by the lock."""
        self.prompt_tokens = self.matched_tokens = 0
        while self.prompt_tokens - self.matched_tokens < worker_tokens:
            self._serve()

    def round(self) -> Reading:
        """Serve the calls of one round, each timed separately."""
        self.prompt_tokens = self.matched_tokens = 0
        times_us = [self._serve() for _ in range(self._calls)]
        details = {
            "p50_us": percentile(times_us, 0.5),
            "p99_us": percentile(times_us, 0.99),
            "mean_prompt_tokens": self.prompt_tokens / self._calls,
            "hit_rate": self.matched_tokens / self.prompt_tokens,
        }
        return Reading({FIGURE: fmean(times_us)}, details)

    def _serve(self) -> float:
        """Serve one call through the cache; return its microseconds."""
        call = self._source.call()
        locality, tree = self.locality, self.locality.tree
        begin_ns = cpu_ns()
        locality.register(call)
        keys = locality.keys(call.call_id)
        blocks, _ = tree.match(keys, self._mask)
        matched = tree.lock(keys, WORKER)
        if len(self._running) >= self._most_running:
            ended, handle = self._running.popleft()
            tree.unlock(handle, WORKER)
            locality.forget(ended)
        tree.insert(keys, WORKER)
        took_us = (cpu_ns() - begin_ns) / 1000
        self._running.append((call.call_id, matched))
        self.prompt_tokens += call.prompt_tokens
        self.matched_tokens += blocks * locality.block_tokens
        return took_us
