"""``fairserve bench shared``: servers that share one order, beside one that decides alone.

The server that decides alone has the embedded database; then 1, 2 and more API servers with two control
servers share a Redis and a PostgreSQL that are named. A *turn* of either sends whole calls from a closed
load (calls per second), and then at a fixed rate: CPU by part, and latency. The turns alternate, and
added latency is taken within a round. CPU is that of the processes; that of Redis is its own figure
(``INFO``), that of PostgreSQL is not known.

Weakness: all of them, the worker and the clients share the cores of one machine.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from sqlalchemy.exc import SQLAlchemyError
from typer import Option

from fairserve.benchmarks.bench.figures_command import say
from fairserve.benchmarks.bench.gateway.calls import CallShape
from fairserve.benchmarks.bench.measure import percentile
from fairserve.benchmarks.evidence.reports import command_line
from fairserve.benchmarks.machine import machine
from fairserve.benchmarks.text_table import aligned
from fairserve.platform.base.command_line import FAILED, CommandError, CommandGroup, file_to_write
from fairserve.platform.db.engine import connect
from fairserve.platform.db.schema import upgrade

ALONE = "alone"
CONTROLS = 2
_SETTLE_S = 0.5
_SHAPE = CallShape("whole", 4)


@dataclass(frozen=True, slots=True)
class Turn:
    """Readings of one turn."""

    max_rps: float
    cpu_ms: Mapping[str, float]
    """CPU of a call at the fixed rate by part, idle CPU included: ``api`` is the mean of the servers."""
    total_ms: Sequence[float]
    """Latencies at the fixed rate."""
    alone_ms: Sequence[float] = ()
    """Those of the server that decides alone, in the same round; empty for itself."""

    def added_ms(self, share: float) -> float:
        """Return by how much a percentile is greater than that of the server that decides alone."""
        return percentile(self.total_ms, share) - percentile(self.alone_ms, share)


@dataclass(slots=True)
class _Servers:
    """The processes of one cell, and how to reach them."""

    name: str
    url: str
    key: str
    parts: dict[str, list[Any]] = field(default_factory=dict)
    """Servers by part."""
    redis_url: str = ""

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU time of each part."""
        found = {name: sum(each.tree.cpu_s() for each in of) for name, of in self.parts.items()}
        if self.redis_url:
            import redis

            with redis.Redis.from_url(self.redis_url) as client:
                used = client.info("cpu")
            found["redis"] = float(used["used_cpu_user"]) + float(used["used_cpu_sys"])
        return found


app = CommandGroup()


@app.command("shared")
def command(
    database_url: Annotated[
        str, Option(metavar="URL", help="An empty PostgreSQL database; it is filled.")
    ],
    redis_url: Annotated[str, Option(metavar="URL", help="A Redis that nothing else uses.")],
    servers: Annotated[
        str, Option(metavar="N,N", help="Numbers of API servers, apart by commas.")
    ] = "1,2,4",
    rate: Annotated[
        float, Option(min=1, max=10_000, metavar="R", help="Calls per second of the fixed rate.")
    ] = 60.0,
    rounds: Annotated[int, Option(min=1, max=100, metavar="N", help="Rounds.")] = 3,
    seconds: Annotated[
        float, Option(min=0.5, max=600, metavar="S", help="Duration of a phase.")
    ] = 5.0,
    out: Annotated[
        Path | None,
        Option("--json", parser=file_to_write, metavar="OUT", help="Write the figures as JSON."),
    ] = None,
) -> None:
    """Measure servers that share one order: CPU by part, rate, latency.

    \f
    Raises CommandError if it cannot measure.
    """
    from fairserve.benchmarks.bench.gateway.measurement import MeasurementError
    from fairserve.benchmarks.bench.gateway.processes import BenchStartError

    try:
        numbers = [int(text) for text in servers.split(",")]
        if min(numbers) < 1:
            raise ValueError
    except ValueError:
        raise CommandError(
            f"--servers is {servers!r}; numbers of 1 or more apart by commas"
        ) from None
    try:
        engine = connect(database_url)
        try:
            upgrade(engine)
        finally:
            engine.dispose()
    except (ValueError, SQLAlchemyError) as error:
        raise CommandError(f"--database-url: {error}") from error
    try:
        turns = _measure(database_url, redis_url, numbers, rate, rounds, seconds)
    except (BenchStartError, MeasurementError) as error:
        raise CommandError(str(error), FAILED) from error
    found = machine(("fairserve", "redis", "uvloop"))
    print(_table(turns))
    print(
        f"\nWhole calls of {_SHAPE.tokens} tokens; CPU and latency at {rate:g} calls/s. Medians of"
        f" {rounds} rounds with least and greatest.\n{found['cores']} cores of"
        f" {found['processor'] or found['architecture']} for everything."
    )
    if out is not None:
        document = {
            "command": command_line(
                "fairserve bench shared", {"servers": servers, "rate": rate, "rounds": rounds}
            ),
            "machine": found,
            "turns": {
                name: [
                    {"max_rps": each.max_rps, "cpu_ms": dict(each.cpu_ms)}
                    | {f"p{q}_ms": percentile(each.total_ms, q / 100) for q in (50, 99)}
                    | {f"added_p{q}_ms": each.added_ms(q / 100) for q in (50, 99) if each.alone_ms}
                    for each in of
                ]
                for name, of in turns.items()
            },
        }
        out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _measure(
    database_url: str,
    redis_url: str,
    numbers: Sequence[int],
    rate: float,
    rounds: int,
    seconds: float,
) -> dict[str, list[Turn]]:
    from fairserve.benchmarks.bench.gateway.gateways import FairServe, new_admin_key
    from fairserve.benchmarks.bench.gateway.measurement import Plan, running_bench
    from fairserve.benchmarks.bench.gateway.processes import interrupted_by_sigterm

    with ExitStack() as stack:
        stack.enter_context(interrupted_by_sigterm())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairserve-bench-")))
        bench = stack.enter_context(running_bench(Plan(seconds=seconds), folder, ()))
        say("starting the server that decides alone")
        lone = FairServe(folder, bench.worker_url, ())
        stack.callback(lone.stop)
        cells = [_Servers(ALONE, lone.url, lone.key, {"api": [lone]})]
        admin_key = new_admin_key()
        settings = {
            "DATABASE_URL": database_url,
            "FAIRSERVE_REDIS_URL": redis_url,
            "FAIRSERVE_SECRET_KEY": secrets.token_urlsafe(32),
        }

        def start(name: str, role: str) -> FairServe:
            say(f"starting {name}")
            server = FairServe(
                folder,
                bench.worker_url,
                (),
                name=name,
                settings=settings,
                admin_key=admin_key,
                role=role,
            )
            stack.callback(server.stop)
            return server

        controls = [start(f"control-{number + 1}", "control") for number in range(CONTROLS)]
        apis: list[FairServe] = []
        turns: dict[str, list[Turn]] = {ALONE: []}
        for number in sorted(numbers):
            while len(apis) < number:
                apis.append(start(f"api-{len(apis) + 1}", "api"))
            name = f"{number} api"
            urls = " ".join(each.url for each in apis)
            parts = {"api": [*apis], "control": [*controls]}
            shared = _Servers(name, urls, apis[0].key, parts, redis_url)
            turns[name] = []
            for round_number in range(rounds):
                say(f"{name}: round {round_number + 1} of {rounds}")
                pair = (cells[0], shared) if round_number % 2 else (shared, cells[0])
                of_round = {each.name: _turn(bench, each, rate) for each in pair}
                lone_ms = of_round[ALONE].total_ms
                turns[ALONE].append(of_round[ALONE])
                turns[name].append(replace(of_round[name], alone_ms=lone_ms))
        return turns


def _turn(bench: Any, servers: _Servers, rate: float) -> Turn:
    bench.load(servers, _SHAPE, concurrency=4, seconds=0.5)
    busy = bench.load(servers, _SHAPE, concurrency=16)
    time.sleep(_SETTLE_S)
    before = servers.cpu_s()
    outcome = bench.load(servers, _SHAPE, rate=rate)
    time.sleep(_SETTLE_S)
    after = servers.cpu_s()
    number = {name: len(of) for name, of in servers.parts.items()}
    cpu_ms = {
        name: (after[name] - before[name]) / outcome.calls / number.get(name, 1) * 1000
        for name in after
    }
    return Turn(busy.rps, cpu_ms, outcome.total_ms)


def _table(turns: Mapping[str, Sequence[Turn]]) -> str:
    parts = [
        *dict.fromkeys(chain.from_iterable(turn.cpu_ms for of in turns.values() for turn in of))
    ]
    rows = []
    for name, of in turns.items():
        cells = [_shown([turn.max_rps for turn in of], 0)]
        cells += [
            _shown([percentile(turn.total_ms, share) for turn in of]) for share in (0.5, 0.99)
        ]
        cells += [
            _shown([turn.added_ms(share) for turn in of]) if of[0].alone_ms else ""
            for share in (0.5, 0.99)
        ]
        cells += [
            _shown([turn.cpu_ms[part] for turn in of]) if part in of[0].cpu_ms else ""
            for part in parts
        ]
        rows.append((name, *cells))
    latency = ("p50 ms", "p99 ms", "added p50 ms", "added p99 ms")
    head = ("servers", "calls/s", *latency, *(f"{part} CPU ms" for part in parts))
    return aligned(head, rows, left=(0,))


def _shown(values: Sequence[float], digits: int = 2) -> str:
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
