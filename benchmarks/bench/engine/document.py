"""The measurements as a JSON document and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fairserve.benchmarks.bench.engine.contest import ContestRun
from fairserve.benchmarks.bench.engine.workloads import EngineWorkload
from fairserve.benchmarks.bench.measure import percentile
from fairserve.benchmarks.bench.report import number
from fairserve.benchmarks.text_table import aligned
from fairserve.engine.torch.bench.runner import RunnerLimits

Runs = Mapping[str, Mapping[str, Sequence[ContestRun]]]
"""Runs by workload and engine, one per round."""

METHOD = {
    "value": "median over the rounds; ratios are taken within a round",
    "tokens_per_s": "output tokens that were asked for over the wall time, from handing over all "
    "requests to the last token; prefill is in the time, loading and warming up are not",
    "ttft_s": "from handing over all requests to a request's first token, over all rounds",
    "clock": "wall time",
    "order": "in a round engines run the same requests one after another; each round turns their "
    "order and draws other tokens",
}


def workload_plain(
    workload: EngineWorkload, runs: Mapping[str, Sequence[ContestRun]]
) -> dict[str, Any]:
    """Return one workload's sizes and the results of each engine."""
    sizes = workload.sizes()
    return {
        "requests": len(sizes),
        "prompt_tokens": sum(prompt + workload.shared_tokens for prompt, _ in sizes),
        "shared_tokens": workload.shared_tokens,
        "output_tokens": sum(output for _, output in sizes),
        "engines": {name: _engine_plain(of_engine) for name, of_engine in runs.items()},
    }


def _engine_plain(runs: Sequence[ContestRun]) -> dict[str, Any]:
    rates = [run.tokens_per_s for run in runs]
    first_s = [at_s for run in runs for at_s in run.first_token_s]
    return {
        "tokens_per_s": {"value": median(rates), "spread": [min(rates), max(rates)]},
        "ttft_s": {"median": median(first_s), "p99": percentile(first_s, 0.99)},
        "same_tokens_share": sum(run.alike for run in runs) / len(runs),
    }


def limits_plain(limits: RunnerLimits) -> dict[str, int]:
    """Return the size limits of the engines."""
    return {
        "kv_tokens": limits.kv_tokens,
        "max_batch": limits.max_batch,
        "token_budget": limits.token_budget,
    }


def workload_table(workloads: Mapping[str, Any]) -> str:
    """Return a table with a line per workload and engine."""
    head = ("workload", "engine", "tok/s", "spread", "TTFT median", "TTFT p99", "same tokens")
    rows = []
    for name, plain in workloads.items():
        for engine, values in plain["engines"].items():
            rate, first = values["tokens_per_s"], values["ttft_s"]
            rows.append(
                (
                    name,
                    engine,
                    number(rate["value"]),
                    f"{number(rate['spread'][0])} - {number(rate['spread'][1])}",
                    f"{number(first['median'])} s",
                    f"{number(first['p99'])} s",
                    f"{values['same_tokens_share']:.0%}",
                )
            )
    return aligned(head, rows, left=(0, 1))


def lines(document: Mapping[str, Any]) -> list[str]:
    """Return a line for each finding that is neither a figure nor a workload."""
    texts = []
    if (found := document.get("breakdown")) is not None:
        for name, part in found.items():
            split = ", ".join(
                f"{key} {number(ms)} ms ({part['shares'][key]:.1%})"
                for key, ms in part["parts_ms"].items()
            )
            texts.append(f"{name}: {part['steps']} of {number(part['step_ms'])} ms, {split}")
    for engine, peak in document.get("memory", {}).items():
        text = "unknown" if peak is None else f"{number(peak / 2**20)} MiB"
        texts.append(f"peak memory of {engine} beyond the weights: {text}")
    if (floor := document.get("floor")) is not None:
        texts += _floor_lines(floor)
    if (fit := document.get("fit")) is not None:
        texts.append(
            f"fit to {fit['passes']} passes: half within {fit['median_residual']:.1%}, "
            f"all within {fit['worst_residual']:.1%}"
        )
        for pattern, values in fit["replay"].items():
            for key, held in values.items():
                texts.append(
                    f"{pattern} {key}: measured {number(held['measured'])}, simulated "
                    f"{number(held['simulated'])} ({held['error']:+.1%})"
                )
    if document["left_out"]:
        texts.append(f"left out, time was over: {', '.join(document['left_out'])}")
    for engine, reason in document["unavailable"].items():
        texts.append(f"{engine} did not run: {reason}")
    return texts


def _floor_lines(floor: Mapping[str, Any]) -> list[str]:
    texts = [
        f"measured bounds: copies {number(floor['copy_gb_per_s'])} GB/s, products of matrices "
        f"{number(floor['matrix_tflops_per_s'])} TFLOP/s"
    ]
    if (decode := floor.get("decode")) is not None:
        texts.append(
            f"a decode step of {decode['sequences']}: {number(decode['step_ms'])} ms, "
            f"{number(decode['over_floor'])} times the floor of {number(decode['floor_ms'])} ms"
        )
    if (prefill := floor.get("prefill")) is not None:
        texts.append(
            f"a prefill of {prefill['tokens']} tokens: {number(prefill['tokens_per_s'])} tokens/s, "
            f"{prefill['of_matrix_rate']:.0%} of the rate of matrix products"
        )
    return texts
