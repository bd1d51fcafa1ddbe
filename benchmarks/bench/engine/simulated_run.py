"""Compares the simulator with this engine on this machine.

The engine serves a mixed load, once with all requests at the start and once with arrivals spread
over it. The simulator replays the same requests with a cost model fitted to measured passes, the
same local scheduler, and the engine's loop. The time until the last token and the mean time to the
first are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from fairserve.benchmarks.bench.engine.figures import SIMULATOR
from fairserve.benchmarks.bench.engine.workloads import EngineWorkload
from fairserve.benchmarks.bench.figure import BenchResult
from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.engine.torch.bench.runner import RunnerOutcome, RunnerRequest
from fairserve.scheduling.registry import SYSTEMS

BLOCK_TOKENS = 16
"""Tokens per page of the engine."""
_SYSTEM = "dlpm"
"""System that dispatches calls at once, to a worker with the measured engine's local scheduler."""
_SPREAD = 0.7
"""Period of the arrivals, relative to the time of all requests at once."""

Times = dict[str, float]
RunAt = Callable[[Sequence[RunnerRequest], Sequence[float]], RunnerOutcome]


def load(vocabulary: int, seed: int, on_gpu: bool, scale: float = 1.0) -> list[RunnerRequest]:
    """Return prompts and outputs of mixed lengths; a third of the prompts share a prefix."""
    unit = 4 if on_gpu else 1
    prompts, outputs = (16 * unit, 320 * unit), (8, 64)
    alone = EngineWorkload("alone", 32, prompts, outputs)
    shared = EngineWorkload("shared", 16, prompts, outputs, shared_tokens=128 * unit)
    requests = [
        request
        for workload in (alone, shared)
        for request in workload.scaled(scale).make(vocabulary, seed)
    ]
    # Order and lengths are the same in every round: they determine which requests run together.
    requests.sort(key=lambda request: (len(request.prompt), request.output_tokens))
    return [requests[at] for at in np.random.default_rng(5).permutation(len(requests))]


def spread(count: int, over_s: float) -> list[float]:
    """Return ascending arrival times, the first one at 0."""
    times = np.sort(np.random.default_rng(6).uniform(0, over_s, count))
    return [float(at_s) for at_s in times - times[0]]


def simulate(
    costs: CostModel, requests: Sequence[RunnerRequest], arrivals_s: Sequence[float]
) -> Times:
    """Replay these requests; return the time of the last token, and the mean time to the first."""
    blocks = _block_ids(requests)
    runs = [
        Interaction(
            f"request-{number}",
            tenant="bench",
            app="bench",
            user="bench",
            arrival_s=arrival_s,
            calls=(
                TraceCall(
                    "call",
                    "bench",
                    (),
                    0.0,
                    len(request.prompt),
                    0,
                    request.output_tokens,
                    blocks=next(blocks),
                ),
            ),
        )
        for number, (request, arrival_s) in enumerate(zip(requests, arrivals_s, strict=True))
    ]
    trace = Trace("bench", BLOCK_TOKENS, ()).with_interactions(runs)
    calls = Replay(trace, SYSTEMS[_SYSTEM], costs).run().calls
    first_s = [call.first_token_s - call.arrival_s for call in calls if call.first_token_s]
    return {
        "total_s": max(call.end_s for call in calls),
        "mean_ttft_s": fmean(first_s),
    }


class LoadRuns:
    """The load on the engine, repeated with other tokens, in both patterns of arrivals."""

    def __init__(self, run_at: RunAt, vocabulary: int, on_gpu: bool, scale: float = 1.0) -> None:
        """Run it once, to warm up and to measure the period over which arrivals are spread."""
        self._run_at, self._vocabulary, self._on_gpu = run_at, vocabulary, on_gpu
        self._scale = scale
        self._drawn = 0
        self.requests = self._load()
        at_once = [0.0] * len(self.requests)
        over_s = _SPREAD * run_at(self.requests, at_once).wall_s
        self.arrivals_s = {"at_once": at_once, "spread": spread(len(at_once), over_s)}
        self.measured: dict[str, list[Times]] = {name: [] for name in self.arrivals_s}

    def round(self) -> None:
        """Run both patterns once."""
        for name, arrivals_s in self.arrivals_s.items():
            outcome = self._run_at(self._load(), arrivals_s)
            times = {"total_s": outcome.wall_s, "mean_ttft_s": fmean(outcome.first_token_s)}
            self.measured[name].append(times)

    def _load(self) -> list[RunnerRequest]:
        self._drawn += 1
        return load(self._vocabulary, self._drawn, self._on_gpu, self._scale)


def compare(costs: CostModel, runs: LoadRuns) -> tuple[BenchResult, dict[str, Any]]:
    """Return the figure, and both times of both patterns.

    The figure is the largest of four errors, each relative to the median over the rounds; its
    spread is that of the largest errors relative to single rounds, which fully include a machine's
    drift.
    """
    simulated = {
        name: simulate(costs, runs.requests, arrivals_s)
        for name, arrivals_s in runs.arrivals_s.items()
    }
    replay = {
        name: {
            key: _held_against(value, [times[key] for times in runs.measured[name]])
            for key, value in times_of.items()
        }
        for name, times_of in simulated.items()
    }
    errors = tuple(
        max(
            abs(simulated[name][key] / times[key] - 1)
            for name, times in zip(runs.measured, of_round, strict=True)
            for key in times
        )
        for of_round in zip(*runs.measured.values(), strict=True)
    )
    details = {
        f"{name}_{key.removesuffix('_s')}_error": held["error"]
        for name, of_pattern in replay.items()
        for key, held in of_pattern.items()
    }
    return BenchResult(SIMULATOR, errors, details, max(map(abs, details.values()))), replay


def _held_against(simulated_s: float, measured_s: Sequence[float]) -> dict[str, Any]:
    middle_s = median(measured_s)
    return {
        "simulated": simulated_s,
        "measured": middle_s,
        "spread": [min(measured_s), max(measured_s)],
        "error": simulated_s / middle_s - 1,
    }


def _block_ids(requests: Sequence[RunnerRequest]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the ids of each prompt's full blocks; equal prefixes have equal ids."""
    ids: dict[tuple[int, tuple[int, ...]], int] = {}
    for request in requests:
        parent = -1
        blocks = []
        for start in range(0, len(request.prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = (parent, request.prompt[start : start + BLOCK_TOKENS])
            parent = ids.setdefault(key, len(ids))
            blocks.append((parent, 1))
        yield tuple(blocks)
