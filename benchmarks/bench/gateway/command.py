"""The command ``fairserve bench gateway``."""

from __future__ import annotations

import importlib.util
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fairserve.benchmarks.bench.figure import BenchResult
from fairserve.benchmarks.bench.figures_command import say
from fairserve.benchmarks.bench.measure import MIN_ROUNDS
from fairserve.benchmarks.bench.report import details, table, to_plain
from fairserve.benchmarks.evidence.reports import command_line
from fairserve.benchmarks.machine import machine
from fairserve.platform.base.command_line import (
    FAILED,
    CommandError,
    CommandGroup,
    file_to_write,
    taking,
)

METHOD = {
    "value": "median over the rounds; ratios are taken within a round",
    "cpu_us": "CPU time of all processes of the gateway per call, at half of its own maximum rate, "
    "less what they use while idle in the same time",
    "max_rps": "completed calls per second with as many open calls as keep one core busy; the "
    "gateway has one core, worker and clients have the others",
    "added_ms": "percentile of the time from when a call is due to the end of its answer, at half of "
    "the gateway's own maximum rate, less that percentile of the same calls without a gateway",
    "idle_mb": "proportional share of the memory of all processes, without calls",
    "order": "in a round all gateways take turns at each shape of calls, in an order that rotates",
}


def _environment(text: str) -> Path:
    path = Path(text)
    if not (path / "bin" / "litellm").is_file():
        raise ValueError(f"{path} has no bin/litellm; `make litellm` makes .venv-litellm")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBenchOptions:
    """Options of ``fairserve bench gateway``."""

    json: Annotated[
        Path | None, Option(parser=file_to_write, metavar="OUT", help="Write the figures as JSON.")
    ] = None
    litellm: Annotated[
        Path | None,
        Option(
            parser=_environment,
            metavar="VENV",
            help="Also measure LiteLLM from this environment; `make litellm` makes .venv-litellm.",
        ),
    ] = None
    rounds: Annotated[int, Option(min=MIN_ROUNDS, max=1000, metavar="N", help="Rounds.")] = 5
    seconds: Annotated[
        float, Option(min=0.1, max=600, metavar="S", help="Duration of a phase.")
    ] = 2.0


def bench(options: GatewayBenchOptions, **sizes: Any) -> None:
    """Measure what a call costs in FairServe and in LiteLLM.

    CPU, maximum rate, added latency and memory, for calls of 4, 64 and 256 tokens, streamed and not.
    \f
    Prints and writes the figures. ``sizes`` replace those of the plan, for tests. Raises CommandError
    if it cannot measure.
    """
    if importlib.util.find_spec("psutil") is None:
        raise CommandError("psutil is missing: pip install 'fairserve[server,bench]'", FAILED)
    from fairserve.benchmarks.bench.gateway.figures import results
    from fairserve.benchmarks.bench.gateway.gateways import litellm_version
    from fairserve.benchmarks.bench.gateway.measurement import MeasurementError, Plan, measure
    from fairserve.benchmarks.bench.gateway.processes import BenchStartError

    begin_s = time.monotonic()
    plan = Plan(**{"rounds": options.rounds, "seconds": options.seconds, **sizes})
    found = machine(("fairserve", "uvloop", "aiohttp"))
    try:
        if options.litellm is not None:
            found["versions"]["litellm"] = litellm_version(options.litellm)
        measured = measure(plan, options.litellm, say)
    except (BenchStartError, MeasurementError) as error:
        raise CommandError(str(error), FAILED) from error
    figures = results(measured)
    _print(figures, found, plan.rounds, time.monotonic() - begin_s)
    for name, times in measured.crashes.items():
        print(f"{name} crashed {times} times; what it was answering then was measured again.")
    document = to_plain(found, figures, plan.rounds)
    document["method"] = {"rounds": plan.rounds, "step_ms": plan.step_ms, **METHOD}
    document["crashes"] = measured.crashes
    document["command"] = command_of(options)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def command_of(options: GatewayBenchOptions) -> str:
    """Return the command without names of files."""
    settings = {
        "litellm": ".venv-litellm" if options.litellm is not None else None,
        "rounds": options.rounds,
        "seconds": None if options.seconds == 2.0 else f"{options.seconds:g}",
    }
    return command_line("fairserve bench gateway", settings)


def _print(figures: list[BenchResult], found: dict[str, Any], rounds: int, took_s: float) -> None:
    print()
    print(table(figures))
    print()
    print(details(figures))
    print()
    print(
        f"Medians of {rounds} rounds with least and greatest; * misses its target. CPU of all "
        "processes of a gateway,\nless their idle CPU; CPU and latency at half of its own maximum. "
        f"{found['cores']} cores of {found['processor'] or found['architecture']}, one for the "
        f"gateway; {took_s:.0f} s in all."
    )


app = CommandGroup()
app.command(
    "gateway",
    epilog="Figures: gateway_{embedded,litellm}_{whole,stream}_{4,64,256}_{cpu_us,max_rps,"
    "added_p50_ms,added_p99_ms}, "
    "gateway_{embedded,litellm}_{idle_mb,idle_cpu_ms_per_s,open_call_us_per_s}, "
    "gateway_litellm_over_embedded_..._cpu",
)(taking(GatewayBenchOptions)(bench))
