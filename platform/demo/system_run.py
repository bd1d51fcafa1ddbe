"""One system from start to end: server up, apps registered, traffic, ledger compared, server gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from fairserve.platform.demo.catalogue import Management
from fairserve.platform.demo.ledger_check import ledger_problems
from fairserve.platform.demo.progress import Progress
from fairserve.platform.demo.recorder import Recorder
from fairserve.platform.demo.server_process import ServerProcess
from fairserve.platform.demo.traffic import play
from fairserve.platform.demo.workload import PlannedRun
from fairserve.scheduling.metrics import summarise

REQUEST_S = 30.0


@dataclass(frozen=True, slots=True)
class SystemResult:
    """What was measured of one system, and everything that went wrong."""

    system: str
    summary: dict[str, Any]
    problems: list[str]


async def run_system(
    server: ServerProcess,
    system: str,
    runs: Sequence[PlannedRun],
    progress: Progress,
    *,
    seconds: float,
    drain_s: float,
) -> SystemResult:
    """Serve the schedule with one system. Raises ServerError if there is no server to do it."""
    recorder = Recorder()
    problems: list[str] = []
    begin_s = time.monotonic()
    async with server:
        progress.say(f"{system}: server ready after {time.monotonic() - begin_s:.1f} s")
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            management = Management(session, server.url, server.admin_key)
            apps = await management.register()
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
    return SystemResult(system, {**figures(recorder), "model": model}, problems)


def figures(recorder: Recorder) -> dict[str, Any]:
    """The metrics of what the clients saw, with the runs that the end of the demo cut off apart."""
    summary = summarise(recorder.calls, recorder.runs)
    summary["unfinished_interactions"] = _unfinished(recorder, None)
    for name, group in summary["groups"].items():
        group["unfinished_interactions"] = _unfinished(recorder, name)
    return summary


def _unfinished(recorder: Recorder, group: str | None) -> int:
    """Runs that the end of the demo cut off; they are among the aborted ones of the metrics."""
    return sum(run.cause == "cancelled" and group in (None, run.group) for run in recorder.runs)
