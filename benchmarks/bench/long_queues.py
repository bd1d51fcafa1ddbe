"""Cost of a served call while many calls wait, and cost of a tick with many tenants.

The dispatcher of the system ``fairserve`` has four workers with full windows. A round serves calls one
after the other: one starts and ends, the next is dispatched, and another arrives, so the queue keeps
its length. Each queued call is of another user. The kinds differ in what a selection could scan:

- ``distinct``: prompts that nobody has cached.
- ``shared``: one cached prompt is the beginning of all.
- ``sessions``: each call continues a prompt of its own that a worker has cached, all equally long.
- ``runs``: calls of runs in progress.
- ``restricted``: calls that only a busy kind of worker can serve wait in front of the others.

A growth is the cost over that with a tenth of the calls.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Literal, get_args

from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import cpu_ns
from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.run_rules import ANY_ANSWER, Clue
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits
from fairserve.throttling.quotas.quota import Quota

Kind = Literal["distinct", "shared", "sessions", "runs", "restricted"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SHORTER = 10
"""Quotient of the queue's length and that of the shorter one with which it is compared."""
BLOCKS = 40
_BLOCK = 16
_SHARED = 1 << 60
_WINDOW_CALLS = 64
"""Calls that fill the workers' windows before the queue."""


def call_us(kind: Kind) -> str:
    """Return the name of the figure with the time of a served call."""
    return f"served_call_us_10000_{kind}"


def call_growth(kind: Kind) -> str:
    """Return the name of the figure with its growth."""
    return f"served_call_growth_{kind}"


class QueueOfKind:
    """A dispatcher with this many queued calls."""

    def __init__(self, kind: Kind, queued: int) -> None:
        self._kind = kind
        self._dispatcher = Dispatcher(SYSTEMS["fairserve"], seed=1)
        self._numbers = count(1)
        self._now_s = 0.0
        self._admitted: deque[str] = deque()
        self._handle(ev.AppChanged("app", AppProfile((StageProfile(640, 0, 50),)), Limits()))
        room = _BLOCK * BLOCKS * (queued + 1000)  # for the prompts of all sessions
        for number in range(4):
            special = "vision" if number == 3 else "gpu"
            self._handle(ev.WorkerJoined(f"w{number}", room, kind=special))
        window_calls = 4 * round(0.03 * room / 640) + _WINDOW_CALLS
        if kind in ("sessions", "runs"):
            for number in range(queued):
                self._arrive(f"u{number}", run=number)
                while self._admitted:
                    self._serve()
        for number in range(window_calls):
            self._arrive("filler", vision=number % 4 == 3)
        for number in range(queued):
            run = number if kind in ("sessions", "runs") else None
            self._arrive(f"u{number}", run=run, vision=kind == "restricted")

    def __len__(self) -> int:
        return self._dispatcher.queued("")

    def us_per_call(self, calls: int) -> float:
        """Serve calls; return the microseconds of CPU for each, its successor's arrival included."""
        begin_ns = cpu_ns()
        for number in range(calls):
            self._serve()
            self._arrive(f"v{number}")
        return (cpu_ns() - begin_ns) / 1000 / calls

    def _handle(self, event: ev.Event) -> None:
        for command in self._dispatcher.handle(event, self._now_s):
            if isinstance(command, ev.Admit) and not command.call_id.startswith("vision"):
                self._admitted.append(command.call_id)

    def _keys(self, number: int, run: int | None) -> list[int]:
        own = [(number << 20) + at for at in range(BLOCKS)]
        shared = BLOCKS - 2
        if self._kind == "shared":
            return list(range(_SHARED, _SHARED + shared)) + own[shared:]
        if self._kind == "sessions" and run is not None:
            first = _SHARED + (run << 20)
            return list(range(first, first + shared)) + own[shared:]
        return own

    def _arrive(self, user: str, *, run: int | None = None, vision: bool = False) -> None:
        number = next(self._numbers)
        call_id = f"{'vision' if vision else 'call'}-{number}"
        call = Call(
            call_id,
            "evil" if vision else "tenant",
            "app",
            user,
            f"run-{call_id}" if run is None else f"run-{run}",
            "model",
            _BLOCK * BLOCKS,
            0,
            50,
            block_keys=self._keys(number, run),
            single=run is None,
            kinds=frozenset({"vision"} if vision else ()),
        )
        self._handle(ev.CallArrived(call))

    def _serve(self) -> None:
        call_id = self._admitted.popleft()
        self._now_s += 0.001
        self._handle(ev.CallStarted(call_id, 0))
        usage = TokenUsage(_BLOCK * BLOCKS, 0, 0, 40)
        self._handle(ev.CallEnded(call_id, "completed", usage))


class LongQueue:
    """A long queue and a shorter one of the same kind."""

    def __init__(self, kind: Kind, *, queued: int, calls: int) -> None:
        self._kind, self._calls = kind, calls
        self._long, self._short = (
            QueueOfKind(kind, queued),
            QueueOfKind(kind, max(1, queued // SHORTER)),
        )

    def round(self) -> Reading:
        """Serve calls of both queues."""
        short_us = self._short.us_per_call(self._calls)
        long_us = self._long.us_per_call(self._calls)
        return Reading(
            {call_us(self._kind): long_us, call_growth(self._kind): long_us / short_us},
            {"shorter_us": short_us, "queued": len(self._long)},
        )


TICK = "tick_ms_20000_tenants"


class Ticks:
    """Ticks of a dispatcher whose tenants, each with an app, limits and a budget, made a call."""

    def __init__(self, name: str, *, tenants: int, ticks: int, callers: int | None = None) -> None:
        """``callers`` tenants make a call between two ticks, by default a hundredth."""
        self._name, self._tenants, self._ticks = name, tenants, ticks
        self._callers = max(1, tenants // 100) if callers is None else callers
        self._dispatcher = Dispatcher(SYSTEMS["fairserve"], seed=1)
        self._now_s = 0.0
        self._calls = count()
        profile = AppProfile((StageProfile(64, 0, 5),))
        quota = Quota(1000, 10**8, None, 10**12, budget_duration="1d")
        self._handle(ev.WorkerJoined("w0", 1_000_000))
        for number in range(tenants):
            app = f"app-{number}"
            self._handle(ev.AppChanged(app, profile, Limits(60, 600, 30)))
            self._handle(ev.ContractChanged("tenant", f"tenant-{number}", quota=quota))
        self._call(tenants)

    def round(self) -> Reading:
        """Tick once a second, while some tenants call; the longest tick is a detail."""
        times_ms = []
        for _ in range(self._ticks):
            self._now_s += 1.0
            self._call(self._callers)
            begin_ns = cpu_ns()
            self._handle(ev.Tick())
            times_ms.append((cpu_ns() - begin_ns) / 1e6)
        return Reading(
            {self._name: sum(times_ms) / len(times_ms)}, {"longest_tick_ms": max(times_ms)}
        )

    def _handle(self, event: ev.Event) -> None:
        self._dispatcher.handle(event, self._now_s)

    def _call(self, calls: int) -> None:
        for _ in range(calls):
            number = next(self._calls)
            owner = number % self._tenants
            call = Call(
                f"call-{number}",
                f"tenant-{owner}",
                f"app-{owner}",
                "user",
                f"run-{number}",
                "model",
                64,
                0,
                5,
                block_keys=[(number << 8) + at for at in range(4)],
                single=True,
                answer_scopes=(ANY_ANSWER,),
                clues=(Clue("conversation", name=owner + 1),),
            )
            self._handle(ev.CallArrived(call))
            self._handle(ev.CallStarted(call.call_id, 0))
            usage = TokenUsage(64, 0, 0, 5)
            keys = (number + 1,)
            self._handle(ev.CallEnded(call.call_id, "completed", usage, continuation_keys=keys))
