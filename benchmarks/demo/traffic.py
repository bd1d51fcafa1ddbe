"""Plays a schedule against a running server: every run is a task, started at its time.

After the last start the runs get ``drain_s`` to end; remaining ones are cancelled and counted, so
that every system ends in bounded time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from openai import AsyncOpenAI

from fairserve.benchmarks.demo.agents.session import AgentRun
from fairserve.benchmarks.demo.catalogue import APPS, RegisteredApp
from fairserve.benchmarks.demo.recorder import Recorder
from fairserve.benchmarks.demo.workload import PlannedRun

CALL_TIMEOUT_S = 300.0


async def play(
    runs: Sequence[PlannedRun],
    apps: Mapping[str, RegisteredApp],
    url: str,
    model: str,
    recorder: Recorder,
    *,
    seconds: float,
    drain_s: float,
) -> None:
    """Start the runs at their times and fill the recorder. Cancelled runs are recorded, too."""
    clients = {
        name: AsyncOpenAI(
            base_url=f"{url}/v1", api_key=app.api_key, max_retries=0, timeout=CALL_TIMEOUT_S
        )
        for name, app in apps.items()
    }
    tasks: set[asyncio.Task[None]] = set()
    begin_s = time.monotonic()
    try:
        for plan in runs:
            await asyncio.sleep(begin_s + plan.start_s - time.monotonic())
            run = AgentRun(clients[plan.app], model, plan, recorder)
            tasks.add(asyncio.create_task(_execute(run), name=plan.run_id))
        await asyncio.sleep(begin_s + seconds - time.monotonic())
        if tasks:
            await asyncio.wait(tasks, timeout=drain_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients.values():
            await client.close()


async def _execute(run: AgentRun) -> None:
    try:
        await run.execute(APPS[run.plan.app].program)
    except Exception as error:  # a run must not end the demo; the demo then fails at its end
        run.recorder.fail(f"run {run.plan.run_id}: {type(error).__name__}: {error}")
