"""Growth of costs: each figure's workload measured with one of its sizes varied.

A curve is measured by the same code as the figures, with fewer rounds per point because there are
many. Points are measured one after the other, each with a new workload, so that the memory of one
is freed before the next is built.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from fairserve.benchmarks.bench.decisions import Decisions
from fairserve.benchmarks.bench.dlpm_steps import DlpmSteps
from fairserve.benchmarks.bench.figure import BenchWorkload
from fairserve.benchmarks.bench.long_queues import KINDS, Kind, OneQueue, Ticks
from fairserve.benchmarks.bench.measure import frozen_garbage
from fairserve.benchmarks.bench.prompts import PromptTrees
from fairserve.benchmarks.bench.vtc_passes import VtcPasses
from fairserve.benchmarks.bench.whole_calls import FIGURE as DISPATCHER
from fairserve.benchmarks.bench.whole_calls import WholeCallsBench

_VALUE = "value"
_PROMPTS_PER_WORKER = 65
"""Number of prompts of a length that fill one worker, if lengths vary."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A measurement and the sizes at which it is made."""

    name: str
    """Name of the curve and its file."""
    title: str
    x: str
    y: str
    sizes: tuple[int, ...]
    build: Callable[[int, float], BenchWorkload]
    """Builds the workload of a size, at a share of its full extent."""
    figure: str = _VALUE
    per_call: bool = False
    """True if the figure is calls per second and the curve shows microseconds per call."""


@dataclass(frozen=True, slots=True)
class MeasuredGrowth:
    """Values of a curve: the median, smallest and largest round for each size."""

    curve: Curve
    points: tuple[tuple[int, float, float, float], ...]

    def to_plain(self) -> dict[str, Any]:
        """Return the curve as plain JSON values."""
        points = [
            {"x": size, "value": value, "spread": [least, greatest]}
            for size, value, least, greatest in self.points
        ]
        curve = self.curve
        return {"name": curve.name, "x": curve.x, "y": curve.y, "points": points}


def measure_curves(
    rounds: int,
    *,
    scale: float = 1.0,
    say: Callable[[str], None] = lambda text: None,
    curves: Sequence[Curve] | None = None,
) -> list[MeasuredGrowth]:
    """Measure all curves, or the named ones; a smaller ``scale`` is for tests."""
    return [_measure(curve, rounds, scale, say) for curve in (curves or CURVES)]


def _measure(curve: Curve, rounds: int, scale: float, say: Callable[[str], None]) -> MeasuredGrowth:
    points = []
    for size in curve.sizes:
        say(f"{curve.title}: {size:,}")
        workload = curve.build(size, scale)
        values = []
        with frozen_garbage():
            for _ in range(rounds):
                value = workload.round().figures[curve.figure]
                values.append(1e6 / value if curve.per_call else value)
                gc.collect()
        points.append((size, median(values), min(values), max(values)))
        del workload
    return MeasuredGrowth(curve, tuple(points))


def _by_prompt_length(size: int, scale: float) -> BenchWorkload:
    length = max(64, round(size * scale))
    return Decisions(
        _VALUE,
        8,
        worker_tokens=_PROMPTS_PER_WORKER * length,
        decisions=max(20, round(1000 * scale)),
        prompts=PromptTrees(1, shortest_tokens=length, longest_tokens=length),
    )


def _by_workers(size: int, scale: float) -> BenchWorkload:
    return Decisions(
        _VALUE,
        max(1, round(size * scale)),
        worker_tokens=max(5000, round(200_000 * scale)),
        decisions=max(20, round(1000 * scale)),
    )


def _by_clients(size: int, scale: float) -> BenchWorkload:
    return Decisions(
        _VALUE,
        8,
        clients=max(1, round(size * scale)),
        worker_tokens=max(5000, round(200_000 * scale)),
        decisions=max(20, round(1000 * scale)),
    )


def _dlpm_by_queue(size: int, scale: float) -> BenchWorkload:
    return DlpmSteps(
        _VALUE,
        waiting=max(16, round(size * scale)),
        batch=max(16, round(64 * scale)),
        worker_tokens=max(50_000, round(200_000 * scale)),
        steps=max(3, round(50 * scale)),
    )


def _vtc_by_clients(size: int, scale: float) -> BenchWorkload:
    clients = max(2, round(size * scale))
    return VtcPasses(
        _VALUE,
        clients=clients,
        queued=5 * clients,
        batch=100,
        admitted=20,
        passes=max(5, round(200 * scale)),
    )


def _dispatcher_by_queue(size: int, scale: float) -> BenchWorkload:
    return WholeCallsBench(
        in_flight=max(10, round((300 + size) * scale)),
        clients=max(20, round(1000 * scale)),
        worker_tokens=max(20_000, round(200_000 * scale)),
        calls=max(10, round(1000 * scale)),
    )


def _call_by_queue(kind: Kind, size: int, scale: float) -> BenchWorkload:
    queued, calls = max(5, round(size * scale)), max(5, round(200 * scale))
    return OneQueue(_VALUE, kind, queued=queued, calls=calls)


def _tick_by_tenants(size: int, scale: float) -> BenchWorkload:
    return Ticks(_VALUE, tenants=max(5, round(size * scale)), ticks=max(3, round(30 * scale)))


CURVES: tuple[Curve, ...] = (
    Curve(
        "decision-by-prompt-length",
        "D2LPM decision, 8 workers",
        "prompt tokens",
        "us per decision",
        (512, 1024, 2048, 4096, 8192, 16_384),
        _by_prompt_length,
    ),
    Curve(
        "decision-by-workers",
        "D2LPM decision",
        "workers",
        "us per decision",
        (1, 4, 16, 64, 256),
        _by_workers,
    ),
    Curve(
        "decision-by-clients",
        "D2LPM decision, 8 workers",
        "clients",
        "us per decision",
        (10, 100, 1000, 10_000),
        _by_clients,
    ),
    Curve(
        "dlpm-step-by-queue-length",
        "DLPM step, 8 calls in and out, batch 64",
        "calls waiting",
        "us per step",
        (32, 128, 512, 2048, 10_000),
        _dlpm_by_queue,
    ),
    Curve(
        "vtc-by-clients",
        "VTC pass with 20 admissions, 5 calls queued per client",
        "clients",
        "us per pass",
        (10, 30, 100, 300, 1000, 3000, 10_000),
        _vtc_by_clients,
    ),
    Curve(
        "dispatcher-by-queue-length",
        "Dispatcher, whole life of a call, 8 workers",
        "calls in flight beyond 300",
        "us of CPU per call",
        (0, 300, 1000, 3000, 10_000),
        _dispatcher_by_queue,
        figure=DISPATCHER,
        per_call=True,
    ),
    *(
        Curve(
            f"served-{kind}-call-by-queue-length",
            f"Dispatcher, a served call, {kind}",
            "calls queued",
            "us of CPU per call",
            (300, 1000, 3000, 10_000),
            partial(_call_by_queue, kind),
        )
        for kind in KINDS
    ),
    Curve(
        "tick-by-tenants",
        "Dispatcher, a tick",
        "tenants",
        "ms of CPU per tick",
        (1000, 5000, 20_000),
        _tick_by_tenants,
    ),
)
