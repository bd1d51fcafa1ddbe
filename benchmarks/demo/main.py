"""``fairserve demo``: the same agents, users and flood under several systems, and one table.

Then agents whose contexts exceed the caches (:mod:`fairserve.benchmarks.demo.memory`), and another.

Each system gets a fresh server (a child process with real workers), the same seeded schedule, and
real clients that do not retry. Exit codes: 0 all went as it should, 1 something failed (it is said
what), 2 wrong use, 130 interrupted. Nothing is left running, and no file but the built-in model in
its cache and what ``--json`` and ``--keep-logs`` ask for.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fairserve.benchmarks.demo.documents import NoTextError
from fairserve.benchmarks.demo.entitlement import satisfaction
from fairserve.benchmarks.demo.findings import findings
from fairserve.benchmarks.demo.memory import (
    OURS,
    MemoryFigures,
    compare_memory,
    memory_finding,
    memory_table,
)
from fairserve.benchmarks.demo.memory import SYSTEMS as MEMORY_SYSTEMS
from fairserve.benchmarks.demo.progress import DemoProgress
from fairserve.benchmarks.demo.server_process import DemoServer, ServerError
from fairserve.benchmarks.demo.system_run import SystemResult, run_system
from fairserve.benchmarks.demo.table import table
from fairserve.benchmarks.demo.workload import (
    CALLS_PER_MINUTE,
    FLOOD_APP,
    FLOOD_USER,
    SESSIONS,
    schedule,
)
from fairserve.benchmarks.machine import machine
from fairserve.platform.base.command_line import CommandError, CommandGroup
from fairserve.scheduling.registry import SYSTEMS

DEFAULT_SYSTEMS = f"fcfs,rpm-{CALLS_PER_MINUTE},fairserve"
DEFAULT_SECONDS = 22.0
DEFAULT_DRAIN_S = 6.0
DEFAULT_MEMORY_S = 10.0
KV_TOKENS, MEMORY_KV_TOKENS = 8192, 16_384
"""KV cache of one worker in each part: small, so that the flood or the sessions are too much for it."""
KEEPALIVE_S = 120
"""Longer than any wait here, so that the headers of all answers contain the queue delay."""
SERVER_DRAIN_S = 3
INTERRUPTED = 130


@dataclass(slots=True)
class Demo:
    """One invocation of the demo."""

    systems: tuple[str, ...]
    workers: int
    seed: int
    seconds: float
    drain_s: float
    """Seconds that runs may still take after the time is over."""
    memory_s: float
    """Seconds of each system of the second part; 0 omits it."""
    keep_logs: bool
    progress: DemoProgress
    servers: list[DemoServer] = field(default_factory=list)
    """Servers that may still be there; :meth:`clean_up` ends them."""

    async def run(self) -> list[SystemResult]:
        """All systems, one after the other."""
        runs = schedule(self.seed, self.seconds)
        results = []
        for system in self.systems:
            server = self._server(system, KV_TOKENS)
            result = await run_system(
                server,
                system,
                runs,
                self.progress,
                seconds=self.seconds,
                drain_s=self.drain_s,
            )
            results.append(result)
        shares = satisfaction(runs, {each.system: each.recorder for each in results})
        for result in results:
            result.summary["satisfied"] = shares[result.system]
            result.summary["satisfied_min"] = min(shares[result.system].values())
        return results

    async def run_memory(self) -> tuple[dict[str, MemoryFigures], list[str]]:
        """Return the figures of the second part by system, and all problems."""
        if not self.memory_s:
            return {}, []
        self.progress.say(
            f"{SESSIONS} sessions of agents whose contexts exceed the caches, {self.memory_s:g} s for "
            f"each of {', '.join(MEMORY_SYSTEMS)}."
        )
        server = self._server(OURS, MEMORY_KV_TOKENS)
        return await compare_memory(server, self.progress, seed=self.seed, seconds=self.memory_s)

    def _server(self, system: str, kv_tokens: int) -> DemoServer:
        arguments = [
            *("--workers", str(self.workers)),
            *("--worker-kv-tokens", str(kv_tokens)),
            *("--keepalive-s", str(KEEPALIVE_S)),
            *("--drain-timeout-s", str(SERVER_DRAIN_S)),
        ]
        server = DemoServer(system, arguments, keep_logs=self.keep_logs)
        self.servers.append(server)
        if self.keep_logs:
            self.progress.say(f"{system}: log in {server.log_path}")
        return server

    def clean_up(self) -> None:
        """End what an interruption may have left; does nothing after a normal end."""
        for server in self.servers:
            server.kill()

    def parameters(self) -> dict[str, Any]:
        """Return the parameters on which the figures depend, besides the machine."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "drain_seconds": self.drain_s,
            "memory_seconds": self.memory_s,
            "workers": self.workers,
            "kv_tokens_per_worker": KV_TOKENS,
            "user_limit_calls_per_minute": CALLS_PER_MINUTE,
        }


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise CommandError(f"--systems: {text!r} names no system")
    for name in names:
        try:
            SYSTEMS[name]
        except KeyError as error:
            raise CommandError(f"--systems: {error.args[0]}") from error
    return names


app = CommandGroup()


@app.command()
def compare(
    out: Annotated[
        Path | None, Option("--json", metavar="OUT", help="Write the figures as JSON.")
    ] = None,
    systems: Annotated[
        str, Option(metavar="A,B", help="Names, separated by commas.")
    ] = DEFAULT_SYSTEMS,
    workers: Annotated[int, Option(min=1, max=64, metavar="N", help="Worker processes.")] = 2,
    seed: Annotated[int, Option(metavar="N", help="Seed of the schedule.")] = 0,
    seconds: Annotated[
        float, Option(min=2, max=3600, metavar="S", help="Time of traffic for each system.")
    ] = DEFAULT_SECONDS,
    drain_seconds: Annotated[
        float,
        Option(
            min=0,
            max=3600,
            metavar="S",
            help="How long runs may still take after the time is over; a slow machine needs more.",
        ),
    ] = DEFAULT_DRAIN_S,
    memory_seconds: Annotated[
        float,
        Option(
            min=0, max=3600, metavar="S", help="Time of each system of the second part; 0: omit it."
        ),
    ] = DEFAULT_MEMORY_S,
    keep_logs: Annotated[
        bool, Option("--keep-logs", help="Keep the servers' folders, and print where they are.")
    ] = False,
) -> int:
    """Run three agent apps, one flooding user and the real server under several systems.

    Compares what the clients measured.
    """
    demo = Demo(
        systems=_names(systems),
        workers=workers,
        seed=seed,
        seconds=seconds,
        drain_s=drain_seconds,
        memory_s=memory_seconds,
        keep_logs=keep_logs,
        progress=DemoProgress(sys.stderr),
    )
    begin_s = time.monotonic()
    _introduce(demo)
    try:
        results, memory, problems = asyncio.run(_interruptible(demo))
    except (ServerError, NoTextError, OSError, RuntimeError) as error:
        demo.progress.say(f"fairserve demo: {error}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        demo.progress.say("fairserve demo: interrupted")
        return INTERRUPTED
    finally:
        demo.clean_up()
    wall_s = time.monotonic() - begin_s
    summaries = {result.system: result.summary for result in results}
    print()
    print(table(summaries))
    print()
    for sentence in findings(summaries):
        print(sentence)
    if memory:
        print()
        print(memory_table(memory))
        print()
        print(memory_finding(memory))
    print(f"Measured by the clients on {_machine_words()}; {wall_s:.0f} s in all.")
    if out is not None:
        _write_json(out, demo, summaries, memory, wall_s)
    failed = {result.system: result.problems for result in results}
    return _report_problems({**failed, "the second part": problems})


async def _interruptible(
    demo: Demo,
) -> tuple[list[SystemResult], dict[str, MemoryFigures], list[str]]:
    """SIGTERM ends the demo in the same order as Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    results = await demo.run()
    return results, *await demo.run_memory()


def _introduce(demo: Demo) -> None:
    demo.progress.say(
        "Two tenants, three agent apps, nine well-behaved users, and one user of the "
        f"{FLOOD_APP.app} app ({FLOOD_USER}) who floods.\n"
        f"The same {demo.seconds:g} s of arrivals under {', '.join(demo.systems)}; "
        f"{demo.workers} workers with {KV_TOKENS} KV tokens each.\n"
        "Its model has random weights: the text is noise, the serving is real."
    )


def _machine_words() -> str:
    found = machine()
    return f"{found['cores']} cores of {found['processor'] or found['architecture']}"


def _write_json(
    path: Path,
    demo: Demo,
    summaries: dict[str, dict[str, Any]],
    memory: dict[str, MemoryFigures],
    wall_s: float,
) -> None:
    value = {
        "systems": summaries,
        "memory": {name: asdict(each) for name, each in memory.items()},
        "machine": machine(),
        "workload": {**demo.parameters(), "wall_s": wall_s},
    }
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _report_problems(problems: Mapping[str, Sequence[str]]) -> int:
    for system, of_system in problems.items():
        for problem in of_system:
            print(f"FAILED under {system}: {problem}", file=sys.stderr)
    return 1 if any(problems.values()) else 0
