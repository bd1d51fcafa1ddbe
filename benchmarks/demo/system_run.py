"""One system from start to end: start server, register apps, run traffic, compare ledger, stop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from fairserve.benchmarks.demo.catalogue import DemoManagement
from fairserve.benchmarks.demo.ledger_check import ledger_problems
from fairserve.benchmarks.demo.progress import DemoProgress
from fairserve.benchmarks.demo.recorder import Recorder
from fairserve.benchmarks.demo.server_process import DemoServer
from fairserve.benchmarks.demo.traffic import play
from fairserve.benchmarks.demo.workload import CALLS_PER_MINUTE, LOADS, PlannedRun
from fairserve.scheduling.metrics import summarise

REQUEST_S = 30.0


@dataclass(frozen=True, slots=True)
class SystemResult:
    """Measurements of one system, and all problems."""

    system: str
    summary: dict[str, Any]
    problems: list[str]
    recorder: Recorder


async def run_system(
    server: DemoServer,
    system: str,
    runs: Sequence[PlannedRun],
    progress: DemoProgress,
    *,
    seconds: float,
    drain_s: float,
) -> SystemResult:
    """Serve the schedule with one system. Raises ServerError if the server fails."""
    recorder = Recorder()
    problems: list[str] = []
    begin_s = time.monotonic()
    async with server:
        progress.say(f"{system}: server ready after {time.monotonic() - begin_s:.1f} s")
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            management = DemoManagement(session, server.url, server.admin_key)
            apps = await management.register(LOADS, {"user_rpm": CALLS_PER_MINUTE})
            model = await management.model(next(iter(apps.values())))
            async with progress.watching(system, recorder, seconds):
                await play(
                    runs,
                    apps,
                    server.url,
                    model,
                    recorder,
                    seconds=seconds,
                    drain_s=drain_s,
                )
            server.check_alive()
            problems += await ledger_problems(management, apps, recorder.outcomes)
    problems += recorder.failures + server.problems
    return SystemResult(system, {**figures(recorder), "model": model}, problems, recorder)


def figures(recorder: Recorder) -> dict[str, Any]:
    """Return the metrics of the clients' observations; runs cut off by the demo's end are separate."""
    summary = summarise(recorder.calls, recorder.runs)
    _add(summary, recorder, None)
    for name, group in summary["groups"].items():
        _add(group, recorder, name)
    return summary


def _add(summary: dict[str, Any], recorder: Recorder, group: str | None) -> None:
    """Add the waiting times to the summary. A rejected call waits without end, which is None."""
    summary["unfinished_interactions"] = _unfinished(recorder, group)
    calls = [call for call in recorder.calls if group in (None, call.group)]
    runs = [run for run in recorder.runs if group in (None, run.group)]
    summary["all_waits"] = {
        "queue_delay_s": _waits(call.queue_delay_s for call in calls),
        "ttft_s": _waits(
            None if call.first_token_s is None else call.first_token_s - call.arrival_s
            for call in calls
            if call.first_token_s is not None or call.outcome != "completed"  # not streamed
        ),
        "interaction_latency_s": _waits(
            run.end_s - run.start_s if run.complete else None for run in runs
        ),
    }


def _waits(values: Iterable[float | None]) -> dict[str, float | None]:
    """Return the 50th and 99th percentile, each one of the values; None exceeds all others."""
    ordered = sorted(math.inf if value is None else value for value in values)
    if not ordered:
        return {"p50": None, "p99": None}
    found = {
        name: ordered[math.ceil(share * len(ordered)) - 1]
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
    return {name: None if value == math.inf else value for name, value in found.items()}


def _unfinished(recorder: Recorder, group: str | None) -> int:
    """Return the number of runs cut off by the demo's end; the metrics count them as aborted."""
    return sum(run.cause == "cancelled" and group in (None, run.group) for run in recorder.runs)
