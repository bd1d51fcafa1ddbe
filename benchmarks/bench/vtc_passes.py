"""Cost of selection by VTC: one pass over the queue while a batch runs.

The batch is full except for the calls that ended since the last pass. A pass admits as many and
fails to admit one more, as every pass over a backlogged queue ends. Between passes, outside the
timed part, every running call decodes some tokens (which moves the counters), some end, and as many
arrive. Here a count decides whether a call fits, like the single comparison of reserved tokens in
an engine that reserves; the VTC artifact, whose passes include its test of what fits, sorts the
batch for each call that it tries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import fmean

import numpy as np

from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import cpu_ns
from fairserve.scheduling.base import CacheListener, LocalCall
from fairserve.scheduling.registry import LOCAL_SCHEDULERS

DECODED = 10
"""Number of tokens that each running call generates between two passes."""


class NothingCached:
    """A prefix cache without content, since VTC does not use it."""

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Return no match."""
        return 0, None, None

    def follow(self, listener: CacheListener) -> None:
        """Do nothing: the cache never changes."""


class VtcPasses:
    """A backlogged queue and a running batch."""

    def __init__(
        self,
        name: str,
        *,
        clients: int,
        queued: int,
        batch: int,
        admitted: int,
        passes: int = 300,
        seed: int = 3,
    ) -> None:
        self._name, self._passes = name, passes
        self._clients, self._batch, self._admitted = clients, batch, admitted
        self._random = np.random.default_rng(seed)
        self._scheduler = LOCAL_SCHEDULERS["vtc"]()
        self._cache = NothingCached()
        self._running: deque[LocalCall] = deque()
        self._made = 0
        for _ in range(queued + batch):
            self._arrive()
        self._select(batch)
        for _ in range(max(20, batch // admitted)):
            self._between()
            self._select(admitted)

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self._scheduler)

    def round(self) -> Reading:
        """Run the passes of one round, each timed separately."""
        times_us, decode_us = [], []
        for _ in range(self._passes):
            decode_us.append(self._between())
            begin_ns = cpu_ns()
            self._select(self._admitted)
            times_us.append((cpu_ns() - begin_ns) / 1000)
        details = {
            "batch": float(self._batch),
            "admitted_per_pass": float(self._admitted),
            "per_admitted_us": fmean(times_us) / self._admitted,
            "decode_per_call_us": fmean(decode_us) / self._batch,
        }
        return Reading({self._name: fmean(times_us)}, details)

    def _select(self, places: int) -> None:
        """Run one pass."""
        scheduler = self._scheduler
        peek, accept, run = scheduler.peek, scheduler.accept, self._running.append
        scheduler.start_pass(self._cache)
        while (call := peek()) is not None:
            if not places:
                scheduler.skip()
                break
            places -= 1
            accept(0)
            run(call)

    def _between(self) -> float:
        """Decode, end and add calls; return the microseconds of reporting decoded tokens."""
        begin_ns = cpu_ns()
        for call in self._running:
            self._scheduler.decoded(call.call_id, DECODED)
        took_us = (cpu_ns() - begin_ns) / 1000
        for _ in range(self._admitted):
            self._scheduler.finish(self._running.popleft().call_id)
            self._arrive()
        return took_us

    def _arrive(self) -> None:
        self._made += 1
        first = self._made <= self._clients  # every client has a call
        number = self._made - 1 if first else self._random.integers(self._clients)
        prompt_tokens = int(self._random.integers(50, 1000))
        call = LocalCall(f"call-{self._made}", f"client-{number}", prompt_tokens, 256)
        self._scheduler.add(call)
