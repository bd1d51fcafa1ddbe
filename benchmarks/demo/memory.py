"""Second part of the demo: agents whose contexts together exceed the KV caches of the workers.

More sessions than there is memory for begin at once and run for a fixed time, one system after the
other, on one server whose system is changed as an operator would. Each session has a task of its own,
so no system finds the prefixes of another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from fairserve.benchmarks.demo.catalogue import DemoManagement
from fairserve.benchmarks.demo.ledger_check import ledger_problems
from fairserve.benchmarks.demo.progress import DemoProgress
from fairserve.benchmarks.demo.recorder import Recorder
from fairserve.benchmarks.demo.server_process import DemoServer
from fairserve.benchmarks.demo.system_run import REQUEST_S
from fairserve.benchmarks.demo.traffic import play
from fairserve.benchmarks.demo.workload import CODING, sessions
from fairserve.benchmarks.text_table import aligned

OURS = "fairserve"
SYSTEMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "cache-aware": ("cache-aware", {}),
    f"{OURS}, no memory for runs": (OURS, {"resident_share": None}),
    OURS: (OURS, {}),
}
"""By column: system and options."""


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Figures of one system, as its clients saw them until the time was over."""

    tokens_per_s: float
    """Tokens of completed calls per second, prompts included."""
    completed_runs: int
    begun_runs: int
    hit_rate: float
    begun_wait_p99_s: float
    """Wait of the calls after the first of their run; one without a first token waited until its end."""


async def compare_memory(
    server: DemoServer, progress: DemoProgress, *, seed: int, seconds: float
) -> tuple[dict[str, MemoryFigures], list[str]]:
    """Return figures by column, and all problems. Raises ServerError if the server fails."""
    found: dict[str, MemoryFigures] = {}
    problems: list[str] = []
    async with server:
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            management = DemoManagement(session, server.url, server.admin_key)
            apps = await management.register([CODING], {})
            model = await management.model(apps[CODING.app])
            outcomes: Counter[tuple[str, str]] = Counter()
            for number, (name, (system, options)) in enumerate(SYSTEMS.items()):
                await management.choose(system, options)
                recorder, runs = Recorder(), sessions(seed, number)
                async with progress.watching(name, recorder, seconds):
                    await play(
                        runs, apps, server.url, model, recorder, seconds=seconds, drain_s=0.0
                    )
                found[name] = memory_figures(recorder, seconds)
                outcomes += recorder.outcomes
                problems += recorder.failures
            server.check_alive()
            problems += await ledger_problems(management, apps, outcomes)
    return found, problems + server.problems


def memory_figures(recorder: Recorder, seconds: float) -> MemoryFigures:
    """Return the figures of what the clients saw within this time."""
    done = [call for call in recorder.calls if call.outcome == "completed"]
    prompts = sum(call.usage.prompt_tokens for call in done)
    seen: set[str] = set()
    waits = []
    for call in sorted(recorder.calls, key=lambda call: call.arrival_s):
        if call.interaction_id in seen:
            waits.append((call.first_token_s or call.end_s) - call.arrival_s)
        seen.add(call.interaction_id)
    return MemoryFigures(
        (prompts + sum(call.usage.output_tokens for call in done)) / seconds,
        recorder.completed_runs,
        len({call.interaction_id for call in done}),
        sum(call.usage.cached_tokens for call in done) / max(1, prompts),
        sorted(waits)[math.ceil(0.99 * len(waits)) - 1] if waits else math.nan,
    )


def memory_table(systems: Mapping[str, MemoryFigures]) -> str:
    """Return the figures as text."""
    rows: dict[str, Callable[[MemoryFigures], str]] = {
        "tokens/s": lambda each: f"{each.tokens_per_s:,.0f}",
        "sessions completed / begun": lambda each: f"{each.completed_runs} / {each.begun_runs}",
        "TTFT p99 of sessions that have begun": lambda each: f"{each.begun_wait_p99_s:.2f} s",
        "prefix hit rate": lambda each: f"{each.hit_rate:.1%}",
    }
    return aligned(
        ["", *systems],
        [[label, *(show(each) for each in systems.values())] for label, show in rows.items()],
    )


def memory_finding(systems: Mapping[str, MemoryFigures]) -> str:
    """Return a sentence that compares the default with the others."""
    own = systems[OURS]
    times = [
        f"{own.tokens_per_s / max(1.0, each.tokens_per_s):.1f} times the tokens/s of {name} "
        f"(p99 wait of a session that has begun: {each.begun_wait_p99_s:.2f} s)"
        for name, each in systems.items()
        if name != OURS
    ]
    return (
        f"With contexts beyond the caches, {OURS} served {' and '.join(times)}; its own p99 wait "
        f"was {own.begun_wait_p99_s:.2f} s. When the time was over {own.begun_runs} sessions had begun."
    )
