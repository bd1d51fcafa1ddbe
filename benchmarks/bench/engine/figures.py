"""Figures of ``fairserve bench engine``, with their targets and peers.

A ratio is computed within a round, between two engines that ran consecutively on the same requests.
Its peers are the rates of the engines in useful tokens per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from fairserve.benchmarks.bench.engine.breakdown import break_down, full_decodes
from fairserve.benchmarks.bench.engine.contest import ContestRun
from fairserve.benchmarks.bench.figure import BenchResult, Figure
from fairserve.engine.torch.bench.runner import TimedStep

OURS, CONTINUOUS, GENERATE = "fairserve", "transformers cb", "generate"


def _ratio(name: str, what: str, target: float) -> Figure:
    return Figure(name, "x", what, target, higher_is_better=True)


RATIOS: Mapping[str, tuple[Figure, str]] = {
    "b1": (
        _ratio("engine_vs_generate_b1", "tokens/s over those of generate, one request", 0.95),
        GENERATE,
    ),
    "b8": (
        _ratio("engine_vs_transformers_cb_b8", "over continuous batching, 8 requests", 1.3),
        CONTINUOUS,
    ),
    "b32": (
        _ratio("engine_vs_transformers_cb_b32", "over continuous batching, 32 requests", 2.5),
        CONTINUOUS,
    ),
    "shared": (
        _ratio("engine_vs_transformers_cb_shared", "the same, 32 requests with one prefix", 4.0),
        CONTINUOUS,
    ),
}
"""Figure of each workload, and the engine with which ours is compared."""

OVERHEAD = Figure("overhead_share_b32", "share", "of a step of 32 decodes, beside the model", 0.05)
SIMULATOR = Figure("simulator_error", "share", "by which the fitted simulator is off", 0.10)

FIGURES: Sequence[Figure] = (*(figure for figure, _ in RATIOS.values()), OVERHEAD, SIMULATOR)


def ratios(runs: Mapping[str, Mapping[str, Sequence[ContestRun]]]) -> list[BenchResult]:
    """Return the ratios; a figure whose engine did not run is omitted."""
    results = []
    for workload, (figure, peer) in RATIOS.items():
        of_workload = runs.get(workload, {})
        if OURS not in of_workload or peer not in of_workload:
            continue
        values = tuple(
            ours.tokens_per_s / theirs.tokens_per_s
            for ours, theirs in zip(of_workload[OURS], of_workload[peer], strict=True)
        )
        rates = {
            f"{name} tok/s": median(run.tokens_per_s for run in of_engine)
            for name, of_engine in of_workload.items()
        }
        results.append(BenchResult(replace(figure, peers=rates), values, {}))
    return results


def overhead(rounds: Sequence[Sequence[TimedStep]]) -> BenchResult:
    """Return the overhead of the steps of each round."""
    decodes = [full_decodes(steps) for steps in rounds]
    values = tuple(break_down(steps).overhead for steps in decodes)
    whole = break_down([step for steps in decodes for step in steps])
    parts = {f"{part}_ms": value for part, value in whole.parts_ms.items()}
    return BenchResult(OVERHEAD, values, {"step_ms": whole.step_ms, **parts})
