"""A complete run of ``fairserve bench engine``: engines in turn, breakdown, bounds, fit.

It needs torch and transformers, so it is imported after the arguments are parsed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fairserve.benchmarks.bench.engine.breakdown import break_down, full_decodes
from fairserve.benchmarks.bench.engine.contest import Say, enter
from fairserve.benchmarks.bench.engine.document import METHOD, limits_plain, workload_plain
from fairserve.benchmarks.bench.engine.figures import (
    CONTINUOUS,
    GENERATE,
    OURS,
    overhead,
    ratios,
)
from fairserve.benchmarks.bench.engine.floor import DeviceRates, ModelSizes, against_floor
from fairserve.benchmarks.bench.engine.options import EngineBenchOptions
from fairserve.benchmarks.bench.engine.simulated_run import LoadRuns, compare
from fairserve.benchmarks.bench.engine.workloads import EngineWorkload, guard, limits, workloads
from fairserve.benchmarks.bench.figure import BenchResult
from fairserve.benchmarks.machine import machine
from fairserve.engine.simulated.pass_fit import fit, knots_of
from fairserve.engine.torch.bench import device as on
from fairserve.engine.torch.bench.continuous import ContinuousBatching
from fairserve.engine.torch.bench.generate import Generate
from fairserve.engine.torch.bench.memory import peak_bytes
from fairserve.engine.torch.bench.ours import OurEngine
from fairserve.engine.torch.bench.passes import PassGrid
from fairserve.engine.torch.bench.runner import (
    Runner,
    RunnerLimits,
    RunnerUnavailableError,
    TimedStep,
)
from fairserve.engine.torch.bench.shapes import build, parameter_counts, served, twin
from fairserve.engine.torch.model_loader import LoadedModel

PACKAGES = ("fairserve", "torch", "transformers", "numpy")
_GUARD_SHAPE = "5m"
"""Shape that replaces a model whose number type is too coarse for equal tokens."""
_GUARD_LIMITS = RunnerLimits(kv_tokens=4096, max_batch=8, token_budget=64)
_BREAKDOWN = "b32"
_FIT_BATCH = 32
"""Maximum sequences while passes are measured on a CPU: a worker's default."""


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """The document, and its figures with their values."""

    document: dict[str, Any]
    results: list[BenchResult]


def measure(options: EngineBenchOptions, say: Say, scale: float = 1.0) -> MeasuredEngine:
    """Run the measurements that the options select. A smaller ``scale`` is for tests.

    Raises DisagreementError, and ValueError for an unavailable device or number type.
    """
    deadline_s = time.monotonic() + options.limit_s
    with on.threads_restored():
        say(f"building a model of shape {options.shape}")
        loaded = build(options.shape, options.dtype, options.device)
        ours = served(loaded)
        on_gpu = loaded.device.type == "cuda"
        threads = on.set_threads(options.threads)
        size = limits(on_gpu, scale)
        document: dict[str, Any] = {
            "machine": machine(PACKAGES)
            | {"device": on.describe(loaded.device), "threads": threads},
            "method": {"rounds": options.rounds, **METHOD},
            "model": {
                "name": loaded.name,
                "dtype": str(loaded.dtype).removeprefix("torch."),
                "parameters": parameter_counts(loaded)[0],
                "kv_bytes_per_token": loaded.kv_bytes_per_token,
            },
            "limits": limits_plain(size),
            "figures": [],
            "workloads": {},
            "unavailable": {},
            "left_out": [],
        }
        results = []
        if options.chosen:
            chosen = [
                each for name, each in workloads(on_gpu, scale).items() if name in options.chosen
            ]
            _guard(loaded, ours, say)
            on.set_threads(threads)  # a smaller model may have changed them
            document["memory"] = _memory(
                loaded, ours, size, workloads(on_gpu, scale)[_BREAKDOWN], say
            )
            results += _contest(
                loaded, ours, size, chosen, options.rounds, deadline_s, document, say
            )
        if options.fit is not None:
            if not on_gpu:
                size = replace(size, max_batch=min(size.max_batch, _FIT_BATCH))
            results.append(_fit(ours, size, options.fit, options.rounds, scale, document, say))
    document["figures"] = [result.to_plain() for result in results]
    return MeasuredEngine(document, results)


def _sizes(loaded: LoadedModel) -> ModelSizes:
    everything, in_layers, of_output = parameter_counts(loaded)
    heads = loaded.model.config.get_text_config().num_attention_heads
    return ModelSizes(
        parameters=everything,
        layer_parameters=in_layers,
        output_parameters=of_output,
        bytes_per_parameter=loaded.dtype.itemsize,
        kv_bytes_per_token=loaded.kv_bytes_per_token,
        pair_flops=4.0 * loaded.layers * heads * loaded.head_size,
    )


def _makers(
    loaded: LoadedModel, ours: LoadedModel, size: RunnerLimits
) -> dict[str, Callable[[], Runner]]:
    return {
        OURS: lambda: OurEngine(ours, size),
        CONTINUOUS: lambda: ContinuousBatching(twin(loaded), size),
        GENERATE: lambda: Generate(twin(loaded)),
    }


# --- engines in turn ------------------------------------------------------------------------------


def _contest(
    loaded: LoadedModel,
    ours: LoadedModel,
    size: RunnerLimits,
    chosen: Sequence[EngineWorkload],
    rounds: int,
    deadline_s: float,
    document: dict[str, Any],
    say: Say,
) -> list[BenchResult]:
    on.release()
    contest = enter(_makers(loaded, ours, size), loaded.vocabulary, say)
    recorded: list[list[TimedStep]] = []
    try:
        for workload in chosen:
            if time.monotonic() > deadline_s:
                document["left_out"].append(workload.name)
                continue
            say(f"{workload.name}: warming up")
            contest.warm_up(workload)
            for number in range(rounds):
                say(f"{workload.name}: round {number + 1} of {rounds}")
                contest.round(number, workload)
                if workload.name == _BREAKDOWN:
                    runner = contest.runners[OURS]
                    assert isinstance(runner, OurEngine)
                    seed = rounds + number + 1
                    recorded.append(runner.record(workload.make(loaded.vocabulary, seed)))
    finally:
        contest.close()
    document["unavailable"] = contest.unavailable
    document["workloads"] = {
        each.name: workload_plain(each, contest.runs[each.name])
        for each in chosen
        if each.name in contest.runs
    }
    results = ratios(contest.runs)
    if recorded:
        steps = [step for of_round in recorded for step in of_round]
        document["breakdown"] = {
            "decode_steps": break_down(full_decodes(steps)).to_plain(),
            "all_steps": break_down(steps).to_plain(),
        }
        rates = DeviceRates(
            on.copy_bytes_per_s(loaded.device),
            on.matrix_flops_per_s(loaded.dtype, loaded.device),
        )
        document["floor"] = against_floor(_sizes(loaded), rates, steps)
        results.append(overhead(recorded))
    return results


def _guard(loaded: LoadedModel, ours: LoadedModel, say: Say) -> None:
    """Check in fp32 that all engines generate the same tokens; coarser types prove nothing."""
    if str(loaded.dtype) != "torch.float32":
        loaded = build(_GUARD_SHAPE, "float32", str(loaded.device))
        ours = served(loaded)
    say(f"comparing tokens, {loaded.name} in float32")
    contest = enter(_makers(loaded, ours, _GUARD_LIMITS), loaded.vocabulary)
    try:
        contest.check(guard())
    finally:
        contest.close()


def _memory(
    loaded: LoadedModel, ours: LoadedModel, size: RunnerLimits, workload: EngineWorkload, say: Say
) -> dict[str, int | None]:
    """Return the peak memory of each engine beyond the weights, measured one after another."""
    peaks: dict[str, int | None] = {}
    for name, make in _makers(loaded, ours, size).items():
        say(f"memory of {name}")

        def phase(make: Callable[[], Runner] = make) -> None:
            runner = make()
            try:
                runner.run(workload.make(loaded.vocabulary, 0))
            finally:
                runner.close()

        with contextlib.suppress(
            RunnerUnavailableError
        ):  # its reason is reported when engines enter
            peaks[name] = peak_bytes(phase, loaded.device)
    return peaks


# --- the simulator --------------------------------------------------------------------------------


def _fit(
    loaded: LoadedModel,
    size: RunnerLimits,
    out: Path,
    rounds: int,
    scale: float,
    document: dict[str, Any],
    say: Say,
) -> BenchResult:
    on_gpu = loaded.device.type == "cuda"
    on.release()
    runner = OurEngine(loaded, size)
    try:
        grid = PassGrid(runner, size, loaded.vocabulary)
        say("passes and load: warming up")
        grid.turn()
        grid.forget()
        runs = LoadRuns(runner.run_at, loaded.vocabulary, on_gpu, scale)
        for number in range(rounds):
            say(f"passes and load: round {number + 1} of {rounds}")
            grid.turn()
            runs.round()
    finally:
        runner.close()
    passes = grid.medians()
    fitted = fit(
        out.stem,
        passes,
        knots=knots_of(passes),
        kv_capacity_tokens=size.kv_tokens,
        max_prefill_tokens=size.token_budget,
        max_running=size.max_batch,
        origin=f"{len(passes)} passes of {loaded.name} measured on "
        f"{document['machine']['device']}, {document['machine']['threads']} threads",
    )
    out.write_text(json.dumps(asdict(fitted.costs), indent=2) + "\n", encoding="utf-8")
    result, replay = compare(fitted.costs, runs)
    document["fit"] = {
        "passes": len(passes),
        "median_residual": fitted.median_residual,
        "worst_residual": fitted.worst_residual,
        "costs": asdict(fitted.costs),
        "replay": replay,
    }
    return result
