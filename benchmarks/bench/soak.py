"""The server under many calls: memory and latency must not grow.

``fairserve bench soak`` starts the server of :mod:`.gateway` with its defaults and a stub worker, and
sends calls of four tenants with 16 users each, half of them streamed, at a fixed number of open calls.
After each tenth of the calls, of which the first one warms up, the memory of the server is read, and
the median latency of the clients is that of the tenth. Then the worker pauses, and calls wait in the
queue: what each of them costs in memory, and how much of it the server keeps once they have ended. At
the end the ledger must have one row for each call that was answered, and no other.

The server has its default settings, but for the times for which it keeps interactions, so that their
number is steady from the first tenth on.

Weakness: worker and clients take the other cores, and a machine that does other things, too, changes the
latencies; the memory is that which the allocator has not returned, so that it is never less than before.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fairserve.benchmarks.bench.figure import BenchResult, Figure
from fairserve.benchmarks.bench.figures_command import say
from fairserve.benchmarks.bench.gateway.calls import KINDS, Kind
from fairserve.benchmarks.bench.gateway.load import GatewayLoad, LoadOutcome
from fairserve.benchmarks.bench.measure import percentile
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

if TYPE_CHECKING:
    from fairserve.benchmarks.bench.gateway.gateways import FairServe
    from fairserve.benchmarks.bench.gateway.processes import BenchProcess

TENANTS = 4
TENTHS = 10
OPEN_CALLS = 16
TOKENS = 8
STEP_MS = 2.0
KV_BLOCKS = 2048
"""Blocks of the worker's cache: it has room for about 150 of the calls."""
ARRIVALS_PER_S = 400
"""Calls a second by which the queue is filled."""
KEPT_S = 5.0
"""Seconds from its last call to the end of an interaction; for twice as long it may reopen.
The default is 300: a soak of minutes would only see how the interactions become more."""
MORE_CONNECTIONS = 200
"""Connections beside those of the waiting calls."""
LONG_S = 3600.0
REST_S = 2.0
"""Seconds after the last call before memory is read: rows are written, connections closed."""
STEADY_S = 5.0
"""Seconds without a change after which a queue is taken for full."""
_POLL_S = 0.2
_GATEWAY = "fairserve.benchmarks.bench.gateway"
METHOD = {
    "memory_mb": "proportional share of the memory of all processes of the server, after a rest",
    "p50_ms": "median time to the end of the answer of the calls of a tenth, by the clients",
    "growth": "last tenth over the first one, less 1",
    "waiting_call_kb": "memory with the calls waiting, less that before, over their number",
}
MEMORY_OF_A_CALL = Figure(
    "soak_kept_by_call_bytes", "B", "memory kept of a call of the second half", None
)
MEMORY_GROWTH = Figure(
    "soak_memory_growth_percent", "%", "memory after the last tenth of the calls", 2.0
)
WAITING_KB = Figure("soak_waiting_call_kb", "kB", "memory of a call that waits", None)
KEPT_KB = Figure(
    "soak_kept_after_waiting_kb", "kB", "memory kept after it, by call that waited", None
)


class SoakError(Exception):
    """The soak found a wrong number of calls or rows. The message is for people."""


@dataclass(frozen=True, slots=True)
class Tenth:
    """Readings after one tenth of the calls."""

    calls: int
    seconds: float
    memory_mb: float
    p50_ms: dict[Kind, float]

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        p50 = {f"{kind}_p50_ms": round(value, 1) for kind, value in self.p50_ms.items()}
        seconds, memory = round(self.seconds, 1), round(self.memory_mb, 1)
        return {"calls": self.calls, "seconds": seconds, "memory_mb": memory, **p50}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Readings of the calls that waited in the queue."""

    sent: int
    waited: int
    """Most of them that the server reported as waiting."""
    completed: int
    rejected: int
    before_mb: float
    waiting_mb: float
    after_mb: float


@dataclass(slots=True)
class Soaked:
    """All readings."""

    tenths: list[Tenth] = field(default_factory=list)
    waiting: Waiting | None = None
    completed: int = 0
    """Calls that clients saw completed."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows of the ledger by outcome."""


class Soak:
    """A server, its worker and its clients."""

    def __init__(
        self,
        server: FairServe,
        worker: BenchProcess,
        clients: Sequence[BenchProcess],
        rest_s: float,
    ) -> None:
        """Register the tenants. Raises StartError."""
        self._rest_s = rest_s
        self._server, self._worker, self._clients = server, worker, clients
        self._keys = [server.key, *(server.new_key(f"bench-{n}") for n in range(1, TENANTS))]
        self._seeds = count(1)

    def memory_mb(self) -> float:
        """Return the memory of the server after a rest."""
        time.sleep(self._rest_s)
        return self._server.tree.memory_bytes() / 1e6

    def send(self, loads: Sequence[dict[str, Any]]) -> list[LoadOutcome]:
        """Send the loads of all tenants at once, and wait for them. Raises SoakError."""
        self.begin(loads)
        return self.end()

    def begin(self, loads: Sequence[dict[str, Any]]) -> None:
        """Begin to send the loads of all tenants."""
        for key, client, load in zip(self._keys, self._clients, loads, strict=True):
            client.write(json.dumps(self._load(key, **load)))

    def end(self) -> list[LoadOutcome]:
        """Wait for the loads. Raises SoakError."""
        answers = [json.loads(client.read()) for client in self._clients]
        for answer in answers:
            if "error" in answer:
                raise SoakError(str(answer["error"]))
        return [LoadOutcome(**answer) for answer in answers]

    def _load(self, key: str, **load: Any) -> dict[str, Any]:
        usual = {"kind": "stream", "tokens": TOKENS, "seconds": 0.0, "limit_s": LONG_S}
        wanted = {"url": self._server.url, "key": key, "seed": next(self._seeds), **usual, **load}
        return asdict(GatewayLoad(**wanted))

    def tenth(self, number: int, calls: int) -> tuple[Tenth, int]:
        """Send calls; return the readings, and the calls that completed. Raises SoakError."""
        each = {"concurrency": OPEN_CALLS // TENANTS, "calls": math.ceil(calls / TENANTS)}
        kinds = [KINDS[(number + at) % len(KINDS)] for at in range(TENANTS)]
        begin_s = time.monotonic()
        outcomes = self.send([{"kind": kind, **each} for kind in kinds])
        took_s = time.monotonic() - begin_s
        times_ms: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
        for kind, outcome in zip(kinds, outcomes, strict=True):
            if outcome.failed:
                raise SoakError(f"{outcome.failed} calls failed: {'; '.join(outcome.errors)}")
            times_ms[kind] += outcome.total_ms
        completed = sum(outcome.calls for outcome in outcomes)
        p50_ms = {kind: percentile(values, 0.5) for kind, values in times_ms.items()}
        return Tenth(completed, took_s, self.memory_mb(), p50_ms), completed

    def wait(self, calls: int) -> Waiting:
        """Pause the worker, have ``calls`` wait in the queue, and let them end. Raises SoakError."""
        before_mb = self.memory_mb()
        by_tenant = math.ceil(calls / TENANTS)
        each = {"rate": ARRIVALS_PER_S / TENANTS, "calls": by_tenant, "timeout_s": LONG_S}
        self._worker.write("pause")
        self.begin([each] * TENANTS)
        waited = self._steady_queue()
        waiting_mb = self.memory_mb()
        self._worker.write("resume")
        outcomes = self.end()
        return Waiting(
            sent=by_tenant * TENANTS,
            waited=waited,
            completed=sum(outcome.calls for outcome in outcomes),
            rejected=sum(outcome.failed for outcome in outcomes),
            before_mb=before_mb,
            waiting_mb=waiting_mb,
            after_mb=self.memory_mb(),
        )

    def _steady_queue(self) -> int:
        """Return the number of waiting calls once it has not grown for ``STEADY_S``."""
        most, grown_s = 0, time.monotonic()
        while time.monotonic() - grown_s < STEADY_S:
            time.sleep(_POLL_S)
            now = sum(model["queued_calls"] for model in self._server.cluster()["models"])
            if now > most:
                most, grown_s = now, time.monotonic()
        return most

    def rows(self) -> dict[str, int]:
        """Stop the server, which writes what is left; return the ledger's rows by outcome."""
        self._server.stop()
        database = self._server.data / "fairserve.sqlite3"
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            query = "select outcome, count(*) from ledger_calls group by outcome"
            return dict(connection.execute(query).fetchall())


def soak(calls: int, waiting: int, say: Callable[[str], None], rest_s: float = REST_S) -> Soaked:
    """Start everything, soak, and stop it. Raises SoakError or StartError."""
    found = Soaked()
    with _soak(waiting, rest_s) as running:
        for number in range(TENTHS):
            tenth, completed = running.tenth(number, math.ceil(calls / TENTHS))
            found.tenths.append(tenth)
            found.completed += completed
            say(f"{number + 1} of {TENTHS}: {json.dumps(tenth.to_plain())}")
        if waiting:
            found.waiting = running.wait(waiting)
            found.completed += found.waiting.completed
            say(f"waiting: {json.dumps(asdict(found.waiting))}")
        found.rows = running.rows()
    check_rows(found)
    return found


def check_rows(found: Soaked) -> None:
    """Raise SoakError unless the ledger has one completed row for each completed call, and no other."""
    if found.rows != {"completed": found.completed}:
        raise SoakError(
            f"{found.completed} calls were completed, and the ledger's rows are {found.rows}"
        )


@contextmanager
def _soak(waiting: int, rest_s: float) -> Iterator[Soak]:
    from fairserve.benchmarks.bench.gateway.gateways import FairServe
    from fairserve.benchmarks.bench.gateway.measurement import split_cores, usable_cores
    from fairserve.benchmarks.bench.gateway.processes import BenchProcess, interrupted_by_sigterm

    gateway_cores, other_cores = split_cores(usable_cores())
    with ExitStack() as stack:
        stack.enter_context(interrupted_by_sigterm())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairserve-soak-")))

        def start(log: str, module: str = "load", *arguments: str) -> BenchProcess:
            command = [sys.executable, "-m", f"{_GATEWAY}.{module}", *arguments]
            process = BenchProcess(command, folder / f"{log}.log", cores=other_cores, piped=True)
            stack.callback(process.stop)
            return process

        worker = start("worker", "stub_worker", str(STEP_MS), str(KV_BLOCKS))
        clients = [start(f"clients-{number}") for number in range(TENANTS)]
        connections = str(waiting + MORE_CONNECTIONS)
        server = FairServe(
            folder,
            f"http://127.0.0.1:{worker.read()}",
            gateway_cores,
            max_connections=connections,
            max_connections_per_address=connections,
            max_queue_wait_s=str(LONG_S),
            interaction_idle_timeout_s=str(KEPT_S),
        )
        stack.callback(server.stop)
        yield Soak(server, worker, clients, rest_s)


def results(found: Soaked) -> list[BenchResult]:
    """Return the figures of what was measured."""
    first, last = found.tenths[0], found.tenths[-1]
    growth = 100 * (last.memory_mb / first.memory_mb - 1)
    memory = {"first_mb": first.memory_mb, "last_mb": last.memory_mb}
    late = found.tenths[TENTHS // 2 :]
    kept = (last.memory_mb - found.tenths[TENTHS // 2 - 1].memory_mb) * 1e6
    by_call = kept / sum(tenth.calls for tenth in late)
    figures = [
        BenchResult(MEMORY_GROWTH, (growth,), memory),
        BenchResult(MEMORY_OF_A_CALL, (by_call,), {}),
    ]
    for kind in KINDS:
        figure = Figure(
            f"soak_{kind}_p50_growth_percent", "%", f"p50 of the last tenth, {kind}", None
        )
        times = {"first_ms": first.p50_ms[kind], "last_ms": last.p50_ms[kind]}
        ratio = last.p50_ms[kind] / first.p50_ms[kind]
        figures.append(BenchResult(figure, (100 * (ratio - 1),), times))
    waiting = found.waiting
    if waiting is not None and waiting.waited:
        numbers = {name: float(value) for name, value in asdict(waiting).items()}
        for figure, now_mb in ((WAITING_KB, waiting.waiting_mb), (KEPT_KB, waiting.after_mb)):
            of_each = (now_mb - waiting.before_mb) * 1e3 / waiting.waited
            figures.append(BenchResult(figure, (of_each,), numbers))
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """Options of ``fairserve bench soak``."""

    calls: Annotated[
        int, Option(min=TENTHS * TENANTS, max=100_000_000, metavar="N", help="Calls in all.")
    ] = 100_000
    json: Annotated[
        Path | None, Option(parser=file_to_write, metavar="OUT", help="Write the figures as JSON.")
    ] = None
    waiting: Annotated[
        int,
        Option(
            min=0,
            max=1_000_000,
            metavar="N",
            help="Calls that wait afterwards, each with a connection; 0: none.",
        ),
    ] = 10_000


def bench(options: SoakOptions, rest_s: float = REST_S) -> None:
    """Send many calls: memory and latency must not grow.

    Then many calls wait: what each of them takes in memory.
    \f
    Prints and writes the figures; a test needs a shorter rest. Raises CommandError if it cannot
    measure, or if the ledger is wrong.
    """
    if importlib.util.find_spec("psutil") is None:
        raise CommandError("psutil is missing: pip install 'fairserve[server,bench]'", FAILED)
    from fairserve.benchmarks.bench.gateway.processes import BenchStartError

    settings = {"calls": options.calls, "waiting": options.waiting}
    begin_s = time.monotonic()
    try:
        found = soak(options.calls, options.waiting, say, rest_s)
    except (SoakError, BenchStartError) as error:
        raise CommandError(str(error), FAILED) from error
    figures, here = results(found), machine(("fairserve", "uvloop", "aiohttp"))
    print(f"\n{table(figures)}\n\n{details(figures)}\n")
    took_s = time.monotonic() - begin_s
    print(f"One row of the ledger for each call: {found.rows}. {took_s:.0f} s in all.")
    document = to_plain(here, figures, 1)
    document["method"] = METHOD
    document["tenths"] = [tenth.to_plain() for tenth in found.tenths]
    document["rows"] = found.rows
    document["command"] = command_line("fairserve bench soak", settings)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


app = CommandGroup()
app.command(
    "soak",
    epilog="Figures: soak_memory_growth_percent, soak_kept_by_call_bytes, "
    "soak_{whole,stream}_p50_growth_percent, soak_waiting_call_kb, soak_kept_after_waiting_kb",
)(taking(SoakOptions)(bench))
