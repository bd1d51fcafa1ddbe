"""Rounds over several workloads, interleaved, so that a slow moment of the machine hits all of them.

Each timed round follows an untimed one of the same workload, which brings its data back into the
processor's caches: the other workloads' share of them is not what is measured.
A round's figure is the mean, or the percentile, within the round; the value that is reported is the
median over the rounds, the spread their least and greatest. Everything runs in one thread, and times
are the CPU time of that thread: nothing that is measured ever waits, so on an idle core this is the time
that passes, and on a busy one other programs do not count. The garbage collector is off during a round,
and what was there before is frozen, so that no figure pays for the objects of another; it runs between
rounds.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns, thread_time_ns

from fairserve.benchmarks.bench.figure import Part, Reading, Result, Workload

MIN_ROUNDS = 5

cpu_ns = thread_time_ns
"""The clock of all means. Reading it costs about half a microsecond, which is not taken off."""

wall_ns = perf_counter_ns
"""The clock of percentiles: it is read in a twentieth of that, but counts what other programs take."""


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """All objects of now are out of the collector's reach, and it starts only when it is called."""
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
    """Gives what says how many bytes have been allocated since and are still in use, garbage apart."""

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
    parts: Sequence[Part],
    rounds: int,
    *,
    scale: float = 1.0,
    say: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Build all workloads, then measure them in turn; results in the order of the parts."""
    workloads: list[Workload] = []
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
            results.append(Result(figure, values, details))
    return results


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]
