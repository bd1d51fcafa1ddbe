"""Figures of ``fairserve bench interactions``: the tracker's time per call, and its memory.

The time must not grow with the number of runs: ``growth`` in the details is the time at 100,000
runs over that at 1,000. The tracker does no more work there, but less of its data is in the
processor's caches.
"""

from __future__ import annotations

from fairserve.benchmarks.bench.figure import BenchWorkload, Figure, FigurePart, sized
from fairserve.benchmarks.bench.figures_command import FiguresCommand
from fairserve.benchmarks.bench.tracker_calls import BYTES, TIME, TrackerMemory, TrackerTime

CALL_TIME = Figure(TIME, "us", "a call's attachment, stage and completion, 100,000 runs", 10)
CALL_BYTES = Figure(BYTES, "bytes", "live state, per call", 400)


def _time(scale: float) -> BenchWorkload:
    return TrackerTime(sized(100_000, scale, 200), sized(20_000, scale, 200))


def _memory(scale: float) -> BenchWorkload:
    return TrackerMemory(sized(5000, scale, 50))


PARTS: tuple[FigurePart, ...] = (
    FigurePart((CALL_TIME,), _time),
    FigurePart((CALL_BYTES,), _memory),
)

command = FiguresCommand(
    "interactions",
    "Measure what the tracker of runs needs for a call, in time and in memory, and hold the figures "
    "against targets.",
    PARTS,
)
app = command.app
"""The command ``fairserve bench interactions``."""
