"""Measures all gateways in interleaved rounds.

A round has, for each shape of calls, a turn of each gateway, and the order of the gateways rotates, so
that a slow moment of the machine affects all of them. A turn has three phases: a closed load that keeps
the gateway busy (its maximum rate), an open load at half of that rate (CPU time and latency), and the
same open load without a gateway (the latency that is not the gateway's). Idle CPU and memory are
measured once a round, and so is the CPU of calls that are open and get no tokens.

The gateway has one core, the worker and the clients have the others. CPU time is that of all processes
of the gateway, less what they use while idle in the same time.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from fairserve.benchmarks.bench.gateway.calls import KINDS, CallShape, Kind
from fairserve.benchmarks.bench.gateway.gateways import Direct, FairServe, Gateway, LiteLlm
from fairserve.benchmarks.bench.gateway.load import GatewayLoad, LoadOutcome
from fairserve.benchmarks.bench.gateway.processes import BenchProcess, interrupted_by_sigterm
from fairserve.benchmarks.bench.measure import percentile

TOKENS = (4, 64, 256)
MAX_CONCURRENCY = 1024
T = TypeVar("T")
MAX_CRASHES = 3
"""Crashes of a gateway after which the measurement ends."""
_HERE = "fairserve.benchmarks.bench.gateway"
_RESTS = 3
"""Readings without calls."""
_SPARE = 4
_SETTLE_S = 0.3
"""Time after the last call in which a gateway completes its records."""
_MAX_FAILED_SHARE = 0.01


class MeasurementError(Exception):
    """The gateways cannot be measured. The message is for people."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls, rounds and durations of a measurement."""

    rounds: int = 5
    seconds: float = 2.0
    """Duration of a phase."""
    calls: int = 50
    """Fewest calls of the phase at half of the maximum; percentiles need them."""
    tokens: Sequence[int] = TOKENS
    kinds: Sequence[Kind] = KINDS
    step_ms: float = 2.0
    """Time between two tokens of a call."""
    open_calls: int = 100
    """Calls of the phase of open calls."""
    opening_s: float = 4.0
    """Time in which these calls are opened."""
    rest_s: float = 2.0
    """Duration of a reading without calls, and half of that of open calls."""

    @property
    def shapes(self) -> list[CallShape]:
        """Return the shapes of the calls."""
        return [CallShape(kind, tokens) for kind in self.kinds for tokens in self.tokens]


@dataclass(frozen=True, slots=True)
class GatewayTurn:
    """Readings of one gateway with calls of one shape in one round."""

    max_rps: float
    saturated_cpu_us: float
    """CPU time of a call at the maximum rate."""
    rate: float
    """Calls per second at half of the maximum."""
    cpu_us: float
    """CPU time of a call at half of the maximum."""
    through: LoadOutcome
    """The calls at half of the maximum."""
    direct: LoadOutcome
    """The same calls without a gateway."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Readings of one gateway in one round without calls, and with calls that get no tokens."""

    idle_s: float
    """CPU time of a second without calls."""
    idle_bytes: float
    open_call_us_per_s: float
    """CPU time of a second of an open call, beyond that of its begin and its end."""


@dataclass(slots=True)
class MeasuredGateway:
    """All readings, a list entry per round."""

    turns: dict[str, dict[CallShape, list[GatewayTurn]]] = field(default_factory=dict)
    rests: dict[str, list[Rest]] = field(default_factory=dict)
    concurrency: dict[str, dict[CallShape, int]] = field(default_factory=dict)
    """Open calls of the closed loads."""
    crashes: dict[str, int] = field(default_factory=dict)
    """Crashes by gateway; what was measured then is measured again."""


def measure(
    plan: Plan,
    litellm: Path | None,
    say: Callable[[str], None] = lambda text: None,
) -> MeasuredGateway:
    """Start everything, measure, and stop it. Raises MeasurementError or StartError."""
    gateway_cores, other_cores = split_cores(usable_cores())
    with ExitStack() as stack:
        stack.enter_context(interrupted_by_sigterm())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairserve-bench-")))
        bench = stack.enter_context(running_bench(plan, folder, other_cores))
        say("starting FairServe")
        gateways: list[Gateway] = [FairServe(folder, bench.worker_url, gateway_cores)]
        stack.callback(gateways[-1].stop)
        if litellm is not None:
            say("starting litellm")
            gateways.append(LiteLlm(litellm, folder, bench.worker_url, gateway_cores))
            stack.callback(gateways[-1].stop)
        return _rounds(bench, gateways, say)


def usable_cores() -> list[int]:
    """Return the cores that this process may use; none where that is unknown."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def split_cores(cores: Sequence[int], gateway: int = 1) -> tuple[list[int], list[int]]:
    """Return the cores of the gateway and those of worker and clients.

    If there are not enough, the last ones belong to both.
    """
    if len(cores) < 2:
        return list(cores), list(cores)
    return list(cores[:gateway]), list(cores[gateway:]) or list(cores[-1:])


class Bench:
    """The stub worker, the clients, and the phases that they carry out."""

    def __init__(self, plan: Plan, worker: BenchProcess, clients: BenchProcess) -> None:
        """Use running processes."""
        self.plan = plan
        self.worker_url = f"http://127.0.0.1:{worker.read()}"
        self._clients = clients
        self._seeds = count(1)
        self.direct = Direct(self.worker_url)

    def load(self, gateway: Gateway, shape: CallShape, **load: float) -> LoadOutcome:
        """Send calls to a gateway. Raises MeasurementError if more than 1 % fail."""
        self.begin(gateway, shape, **load)
        return self.end(gateway, shape)

    def begin(self, gateway: Gateway, shape: CallShape, **load: float) -> None:
        """Begin to send calls; :meth:`end` waits for them."""
        wanted = GatewayLoad(
            gateway.url,
            gateway.key,
            shape.kind,
            shape.tokens,
            seed=next(self._seeds),
            **{"seconds": self.plan.seconds, **load},  # type: ignore[arg-type]
        )
        self._clients.write(json.dumps(asdict(wanted)))

    def end(self, gateway: Gateway, shape: CallShape) -> LoadOutcome:
        """Wait for the calls. Raises MeasurementError if more than 1 % failed."""
        answer = json.loads(self._clients.read())
        where = f"{gateway.name}, {shape.name}"
        if "error" in answer:
            raise MeasurementError(f"{where}: {answer['error']}")
        outcome = LoadOutcome(**answer)
        if outcome.failed > _MAX_FAILED_SHARE * (outcome.calls + outcome.failed):
            raise MeasurementError(
                f"{where}: {outcome.failed} of {outcome.calls + outcome.failed} calls failed: "
                f"{'; '.join(outcome.errors)}"
            )
        return outcome

    def costs(
        self, gateway: Gateway, shape: CallShape, idle_s: float, **load: float
    ) -> tuple[LoadOutcome, float]:
        """Send calls; return the outcome, and the CPU time beyond that of the idle gateway.

        ``idle_s`` is that of a second.
        """
        assert gateway.tree is not None
        begin_s, before_s = time.monotonic(), gateway.tree.cpu_s()
        outcome = self.load(gateway, shape, **load)
        time.sleep(_SETTLE_S)
        used_s = gateway.tree.cpu_s() - before_s
        return outcome, beyond_idle(used_s, idle_s, time.monotonic() - begin_s)

    def concurrency(self, gateway: Gateway, shape: CallShape) -> int:
        """Return the number of open calls that keeps a gateway busy, from a few calls one by one."""
        self.load(gateway, shape, concurrency=4, seconds=0.5, calls=12)
        outcome, cpu_s = self.costs(gateway, shape, 0.0, concurrency=4, seconds=0.5, calls=12)
        direct = self.load(self.direct, shape, concurrency=1, seconds=0.1)
        return busy_concurrency(percentile(direct.total_ms, 0.5) / 1000, cpu_s / outcome.calls)

    def turn(
        self, gateway: Gateway, shape: CallShape, concurrency: int, idle_s: float
    ) -> GatewayTurn:
        """Measure one gateway with calls of one shape. ``idle_s`` is its CPU time without calls."""
        busy, busy_s = self.costs(
            gateway, shape, idle_s, concurrency=concurrency, calls=3 * concurrency
        )
        rate = busy.rps / 2
        half, half_s = self.costs(gateway, shape, idle_s, rate=rate, calls=self.plan.calls)
        direct = self.load(self.direct, shape, rate=rate, calls=self.plan.calls)
        return GatewayTurn(
            max_rps=busy.rps,
            saturated_cpu_us=busy_s / busy.calls * 1e6,
            rate=rate,
            cpu_us=half_s / half.calls * 1e6,
            through=half,
            direct=direct,
        )

    def rest(self, gateway: Gateway) -> Rest:
        """Measure one gateway without calls, and with open calls that get no tokens.

        The CPU of open calls is that of a time in which all of them are open, so that their beginnings
        and ends do not count.
        """
        plan = self.plan
        # The least of some: a gateway that has just started may not be idle yet.
        idle_s = min(_cpu_of_a_second(gateway, plan.rest_s) for _ in range(_RESTS))
        assert gateway.tree is not None
        size = gateway.tree.memory_bytes()
        shape, settle_s, wall_s = CallShape("stream", 2), plan.opening_s / 2, 2 * plan.rest_s
        self.begin(
            gateway,
            shape,
            rate=plan.open_calls / plan.opening_s,
            calls=plan.open_calls,
            seconds=0.0,
            hold_s=plan.opening_s + 2 * settle_s + wall_s,
        )
        time.sleep(plan.opening_s + settle_s)
        busy_s = _cpu_of_a_second(gateway, wall_s)
        self.end(gateway, shape)
        return Rest(idle_s, size, (busy_s - idle_s) / plan.open_calls * 1e6)


def _cpu_of_a_second(gateway: Gateway, wall_s: float) -> float:
    """Return the CPU time that a gateway uses in a second, measured over the next ``wall_s``."""
    assert gateway.tree is not None
    begin_s, before_s = time.monotonic(), gateway.tree.cpu_s()
    time.sleep(wall_s)
    return (gateway.tree.cpu_s() - before_s) / (time.monotonic() - begin_s)


def busy_concurrency(call_s: float, cpu_s: float) -> int:
    """Return the number of open calls that keeps one core busy.

    ``call_s`` is the duration of a call without a gateway, ``cpu_s`` the CPU time of the gateway for
    it. By Little's law, calls that arrive every ``cpu_s`` and stay for ``call_s`` are
    ``call_s / cpu_s`` at a time; twice as many keep the core busy in spite of chance.
    """
    needed = 2 * call_s / max(cpu_s, 1e-4)
    return min(MAX_CONCURRENCY, math.ceil(needed) + _SPARE)


def beyond_idle(used_s: float, idle_s: float, wall_s: float) -> float:
    """Return the part of a CPU time that ``wall_s`` while idle does not explain; at least 0."""
    return max(0.0, used_s - idle_s * wall_s)


@contextmanager
def running_bench(plan: Plan, folder: Path, cores: Sequence[int]) -> Iterator[Bench]:
    """Start worker and clients; stop them at the end. Raises StartError."""
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> BenchProcess:
            command = [sys.executable, "-m", f"{_HERE}.{name}", *arguments]
            process = BenchProcess(command, folder / f"{name}.log", cores=cores, piped=True)
            stack.callback(process.stop)
            return process

        yield Bench(plan, start("stub_worker", str(plan.step_ms)), start("load"))


def _rounds(
    bench: Bench, gateways: Sequence[Gateway], say: Callable[[str], None]
) -> MeasuredGateway:
    plan = bench.plan
    measured = MeasuredGateway(
        turns={gateway.name: {shape: [] for shape in plan.shapes} for gateway in gateways},
        rests={gateway.name: [] for gateway in gateways},
    )
    for gateway in gateways:
        say(f"trying {gateway.name}")
        measured.concurrency[gateway.name] = {
            shape: bench.concurrency(gateway, shape) for shape in plan.shapes
        }
    for number in range(plan.rounds):
        say(f"round {number + 1} of {plan.rounds}")
        order = rotated(gateways, number)
        for gateway in order:
            rest = _repeated(partial(bench.rest, gateway), gateway, measured)
            measured.rests[gateway.name].append(rest)
        for shape in plan.shapes:
            for gateway in order:
                turn = partial(
                    bench.turn,
                    gateway,
                    shape,
                    measured.concurrency[gateway.name][shape],
                    measured.rests[gateway.name][-1].idle_s,
                )
                measured.turns[gateway.name][shape].append(_repeated(turn, gateway, measured))
    return measured


def _repeated(measure: Callable[[], T], gateway: Gateway, measured: MeasuredGateway) -> T:
    """Return what ``measure`` returns, which is called again after a crash of the gateway.

    Raises MeasurementError.
    """
    while True:
        try:
            return measure()
        except MeasurementError:
            crashes = measured.crashes.get(gateway.name, 0)
            if crashes == MAX_CRASHES or not gateway.restart():
                raise
            measured.crashes[gateway.name] = crashes + 1


def rotated(gateways: Sequence[Gateway], number: int) -> list[Gateway]:
    """Return the gateways in the order of a round."""
    first = number % len(gateways)
    return [*gateways[first:], *gateways[:first]]
