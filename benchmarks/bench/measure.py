"""Measures several workloads in interleaved rounds, so that a slow moment affects all of them.

Each timed round follows an untimed one of the same workload, which loads its data into the
processor's caches, so that the influence of the other workloads on them is not measured. A round's
figure is the mean, or the percentile, within the round; the reported value is the median over the
rounds, the spread their minimum and maximum. Everything runs in one thread, and times are the CPU
time of that thread: measured code never waits, so on an idle core this is the elapsed time, and on
a busy one other programs do not count. The garbage collector is off during a round, and earlier
objects are frozen, so that no figure pays for the objects of another; it runs between rounds.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns, thread_time_ns

from fairserve.benchmarks.bench.figure import BenchResult, BenchWorkload, FigurePart, Reading

MIN_ROUNDS = 5

cpu_ns = thread_time_ns
"""Clock of all means. Reading it costs about half a microsecond, which is not subtracted."""

wall_ns = perf_counter_ns
"""Clock of percentiles: twenty times as fast to read, but it includes the time of other programs."""


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """Exclude all existing objects from garbage collection, which then runs only when called."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


@contextmanager
def traced_memory() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the bytes allocated since and still in use, without garbage."""

    def kept() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield kept
    finally:
        tracemalloc.stop()


def measure(
    parts: Sequence[FigurePart],
    rounds: int,
    *,
    scale: float = 1.0,
    say: Callable[[str], None] = lambda text: None,
) -> list[BenchResult]:
    """Build all workloads, then measure them in turn; return results in the order of the parts."""
    workloads: list[BenchWorkload] = []
    for part in parts:
        say(f"preparing {part.figures[0].name}")
        workloads.append(part.build(scale))
    readings: list[list[Reading]] = [[] for _ in parts]
    with frozen_garbage():
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for turn in range(len(parts)):
                at = (turn + number) % len(parts)
                workloads[at].round()
                readings[at].append(workloads[at].round())
            gc.collect()
    results = []
    for part, of_part in zip(parts, readings, strict=True):
        details = {
            name: median(reading.details[name] for reading in of_part)
            for name in of_part[0].details
        }
        for figure in part.figures:
            values = tuple(reading.figures[figure.name] for reading in of_part)
            results.append(BenchResult(figure, values, details))
    return results


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]
