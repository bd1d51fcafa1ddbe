"""``fairserve demo``: the same agents, users and flood under several systems, and one table.

Each system gets a fresh server (a child process with real workers), the same seeded schedule, and
real clients that do not retry. Exit codes: 0 all went as it should, 1 something failed (it is said
what), 2 wrong use, 130 interrupted. Nothing is left running, and no file but the built-in model in
its cache and what ``--json`` and ``--keep-logs`` ask for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairserve.benchmarks.demo.documents import NoTextError
from fairserve.benchmarks.demo.entitlement import satisfaction
from fairserve.benchmarks.demo.findings import findings
from fairserve.benchmarks.demo.progress import Progress
from fairserve.benchmarks.demo.server_process import ServerError, ServerProcess
from fairserve.benchmarks.demo.system_run import SystemResult, run_system
from fairserve.benchmarks.demo.table import table
from fairserve.benchmarks.demo.workload import CALLS_PER_MINUTE, FLOOD_APP, FLOOD_USER, schedule
from fairserve.benchmarks.machine import machine
from fairserve.scheduling.registry import SYSTEMS

DEFAULT_SYSTEMS = f"fcfs,rpm-{CALLS_PER_MINUTE},fairserve"
DEFAULT_SECONDS = 55.0
DEFAULT_DRAIN_S = 12.0
KV_TOKENS = 8192
"""KV cache of one worker: small, so that the flood overloads it."""
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
    keep_logs: bool
    progress: Progress
    servers: list[ServerProcess] = field(default_factory=list)
    """Servers that may still be there; :meth:`clean_up` ends them."""

    async def run(self) -> list[SystemResult]:
        """All systems, one after the other."""
        runs = schedule(self.seed, self.seconds)
        arguments = [
            *("--workers", str(self.workers)),
            *("--worker-kv-tokens", str(KV_TOKENS)),
            *("--keepalive-s", str(KEEPALIVE_S)),
            *("--drain-timeout-s", str(SERVER_DRAIN_S)),
        ]
        results = []
        for system in self.systems:
            server = ServerProcess(system, arguments, keep_logs=self.keep_logs)
            self.servers.append(server)
            result = await run_system(
                server,
                system,
                runs,
                self.progress,
                seconds=self.seconds,
                drain_s=self.drain_s,
            )
            results.append(result)
            if self.keep_logs:
                self.progress.say(f"{system}: log in {server.log_path}")
        shares = satisfaction(runs, {each.system: each.recorder for each in results})
        for result in results:
            result.summary["satisfied"] = shares[result.system]
            result.summary["satisfied_min"] = min(shares[result.system].values())
        return results

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
            "workers": self.workers,
            "kv_tokens_per_worker": KV_TOKENS,
            "user_limit_calls_per_minute": CALLS_PER_MINUTE,
        }


def main(argv: list[str]) -> int:
    """Run the demo; returns the exit code."""
    options = _options(argv)
    demo = Demo(
        systems=options.systems,
        workers=options.workers,
        seed=options.seed,
        seconds=options.seconds,
        drain_s=options.drain_seconds,
        keep_logs=options.keep_logs,
        progress=Progress(sys.stderr),
    )
    begin_s = time.monotonic()
    _introduce(demo)
    try:
        results = asyncio.run(_interruptible(demo))
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
    print(f"Measured by the clients on {_machine_words()}; {wall_s:.0f} s in all.")
    if options.json is not None:
        _write_json(options.json, demo, summaries, wall_s)
    return _report_problems(results)


async def _interruptible(demo: Demo) -> list[SystemResult]:
    """SIGTERM ends the demo in the same order as Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await demo.run()


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fairserve demo",
        description="Run three agent apps, one flooding user and the real server under several "
        "systems, and compare what the clients saw.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures as JSON")
    parser.add_argument(
        "--systems",
        type=_systems,
        default=_systems(DEFAULT_SYSTEMS),
        help=f"names, separated by commas (default: {DEFAULT_SYSTEMS})",
    )
    parser.add_argument(
        "--workers", type=_positive, default=2, help="worker processes (default: 2)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the schedule (default: 0)")
    parser.add_argument(
        "--seconds",
        type=_seconds(at_least=2),
        default=DEFAULT_SECONDS,
        help=f"of traffic for each system (default: {DEFAULT_SECONDS:g})",
    )
    parser.add_argument(
        "--drain-seconds",
        type=_seconds(at_least=0),
        default=DEFAULT_DRAIN_S,
        help="how long runs may still take after the time is over; a slow machine needs more "
        f"(default: {DEFAULT_DRAIN_S:g})",
    )
    parser.add_argument(
        "--keep-logs", action="store_true", help="keep the servers' folders and say where they are"
    )
    return parser.parse_args(argv)


def _systems(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError("names no system")
    for name in names:
        try:
            SYSTEMS[name]
        except KeyError as error:
            raise argparse.ArgumentTypeError(str(error.args[0])) from error
    return names


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 64:
        raise argparse.ArgumentTypeError("allowed: 1 to 64")
    return value


def _seconds(at_least: float) -> Callable[[str], float]:
    def seconds(text: str) -> float:
        value = float(text)
        if not at_least <= value <= 3600:
            raise argparse.ArgumentTypeError(f"allowed: {at_least:g} to 3600")
        return value

    return seconds


def _introduce(demo: Demo) -> None:
    demo.progress.say(
        "Two tenants, three agent apps, nine well-behaved users, and one user of the "
        f"{FLOOD_APP.app} app ({FLOOD_USER}) who floods.\n"
        f"The same {demo.seconds:g} s of arrivals under {', '.join(demo.systems)}; "
        f"{demo.workers} workers with {KV_TOKENS} KV tokens each.\n"
        "The built-in model has random weights: the text is noise, the serving is real."
    )


def _machine_words() -> str:
    found = machine()
    return f"{found['cores']} cores of {found['processor'] or found['architecture']}"


def _write_json(
    path: Path, demo: Demo, summaries: dict[str, dict[str, Any]], wall_s: float
) -> None:
    value = {
        "systems": summaries,
        "machine": machine(),
        "workload": {**demo.parameters(), "wall_s": wall_s},
    }
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _report_problems(results: Sequence[SystemResult]) -> int:
    failed = False
    for result in results:
        for problem in result.problems:
            failed = True
            print(f"FAILED under {result.system}: {problem}", file=sys.stderr)
    return 1 if failed else 0
