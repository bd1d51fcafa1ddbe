"""The command ``fairserve simulate``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairserve.benchmarks.several_values import SeveralValues
from fairserve.benchmarks.simulate.arguments import (
    Arguments,
    costs_of,
    options_of,
    systems_of,
    trace_of,
)
from fairserve.benchmarks.simulate.job import SimulationJob, SimulationOutcome, run_jobs
from fairserve.benchmarks.simulate.table import table
from fairserve.engine.simulated.traces.model import Trace
from fairserve.platform.base.command_line import FAILED, CommandError, CommandGroup, taking
from fairserve.scheduling.metrics import VTC_TABLES, Windows

app = CommandGroup()


@app.command(
    cls=SeveralValues,
    epilog="Formats of traces and the rules for users and arrivals: docs/guide/traces.md.",
)
@taking(Arguments)
def simulate(arguments: Arguments) -> int:
    """Replay a trace on simulated workers in virtual time, and compare systems.

    It goes through the dispatcher and the schedulers that serve.
    """
    begin_s = time.monotonic()
    try:
        systems = systems_of(arguments)
        trace = trace_of(arguments)
        options = options_of(arguments, trace)
        costs = costs_of(arguments)
        windows = VTC_TABLES if costs.loop == "vtc-artifact" else Windows()
        jobs = [
            SimulationJob(
                name,
                trace,
                system,
                costs,
                options,
                windows=windows,
                curves=arguments.plot is not None,
            )
            for name, system in systems.items()
        ]
        outcomes = list(run_jobs(jobs, arguments.jobs, _say))
    except ValueError as error:  # of which TraceError is one
        raise CommandError(str(error)) from error
    print(
        f"{trace.name}: {len(trace):,} interactions, {trace.calls:,} calls; {costs.name}, ", end=""
    )
    print(f"{options.workers} worker{'s' if options.workers > 1 else ''}")
    print()
    print(table([(outcome.name, outcome.summary) for outcome in outcomes]))
    _say(f"{time.monotonic() - begin_s:.1f} s")
    try:
        if arguments.plot is not None:
            from fairserve.benchmarks.simulate.plots import draw

            for path in draw(outcomes, arguments.plot):
                _say(f"wrote {path}")
        if arguments.json is not None:
            write_json(document(trace, outcomes), arguments.json)
            _say(f"wrote {arguments.json}")
    except OSError as error:
        raise CommandError(f"cannot write: {error}", FAILED) from error
    return 0


def document(trace: Trace, outcomes: Sequence[SimulationOutcome]) -> dict[str, Any]:
    """The JSON document of ``--json``."""
    begin_s = min((each.arrival_s for each in trace.interactions), default=0.0)
    end_s = max((each.arrival_s for each in trace.interactions), default=0.0)
    return {
        "trace": {
            "name": trace.name,
            "interactions": len(trace),
            "calls": trace.calls,
            "users": len({(each.tenant, each.user) for each in trace.interactions}),
            "arrivals_s": [begin_s, end_s],
        },
        "systems": {outcome.name: outcome.summary for outcome in outcomes},
    }


def write_json(value: Any, path: Path) -> None:
    """All of it or nothing: the same value makes the same bytes."""
    text = json.dumps(value, indent=2, sort_keys=True) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
