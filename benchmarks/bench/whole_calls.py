"""Throughput of the dispatcher of the system ``fairserve``: calls from arrival to end.

Runs consist of four sequential calls; when a run ends, another client begins one, so the number of
calls in flight is constant. Each of eight workers runs at most 32 calls and reports once per step,
in one event with the totals of all its running calls; a step is ten tokens, so a call of 150 output
tokens is in 15 reports. Then completed calls end, and waiting calls start. There are four ticks per
second of virtual time.

Only ``Dispatcher.handle`` is timed, event by event and so with the clock that is fast to read;
generating prompts and the workers' bookkeeping are not included.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from fairserve.benchmarks.bench.calls import OUTPUT_TOKENS, TENANTS, BenchCallSource
from fairserve.benchmarks.bench.decisions import WORKER_TOKENS
from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import wall_ns
from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

FIGURE = "dispatcher_calls_per_s"
CALLS_PER_RUN = 4
STEP_TOKENS = 10
STEP_S = 0.25
PROFILE = AppProfile((StageProfile(2450.0, 626.0, float(OUTPUT_TOKENS)),), CALLS_PER_RUN)
LIMITS = Limits(user_rpm=100_000, app_rpm=1_000_000)
"""Limits that are counted but never reached."""

_PARTS: dict[type, str] = {
    ev.CallArrived: "arrival",
    ev.CallStarted: "start",
    ev.TokensDecoded: "decoded",
    ev.CallEnded: "end",
    ev.Tick: "tick",
}


@dataclass(slots=True)
class _Run:
    client: int
    number: int
    calls_left: int


@dataclass(slots=True)
class _Worker:
    waiting: deque[str] = field(default_factory=deque)
    running: dict[str, int] = field(default_factory=dict)
    """Output tokens so far, by call."""


class WholeCallsBench:
    """A dispatcher with calls in flight."""

    def __init__(
        self,
        *,
        in_flight: int = 300,
        clients: int = 1000,
        workers: int = 8,
        worker_tokens: int = WORKER_TOKENS,
        batch: int = 32,
        calls: int = 1500,
        system: str = "fairserve",
        seed: int = 4,
    ) -> None:
        self._clients, self._batch, self._calls = clients, batch, calls
        self._random = np.random.default_rng(seed)
        self._source = BenchCallSource(seed, clients)
        self.dispatcher = Dispatcher(SYSTEMS[system], seed=seed)
        self._now_s = 0.0
        self._workers = {f"worker-{n}": _Worker() for n in range(workers)}
        self._calls_by_id: dict[str, tuple[Call, _Run]] = {}
        self._runs = 0
        self._started = self.ended = 0
        self._spent_ns = dict.fromkeys(_PARTS.values(), 0)
        for tenant in range(TENANTS):
            self.dispatcher.handle(ev.AppChanged(f"app-{tenant}", PROFILE, LIMITS), 0.0)
        for worker in self._workers:
            self.dispatcher.handle(ev.WorkerJoined(worker, worker_tokens), 0.0)
        for _ in range(in_flight):
            self._begin_run()
        # Until the caches are full, and the calls of a batch are at different positions.
        self._advance(max(in_flight, 2 * workers * worker_tokens // 1500))

    def round(self) -> Reading:
        """Advance until the round's number of calls has ended."""
        self._spent_ns = dict.fromkeys(_PARTS.values(), 0)
        calls = self._advance(self._calls)
        spent_s = sum(self._spent_ns.values()) / 1e9
        details = {f"{part}_us": spent / 1000 / calls for part, spent in self._spent_ns.items()}
        details["running"] = float(sum(len(w.running) for w in self._workers.values()))
        details["queued"] = float(len(self.dispatcher.first.feeder))
        details["in_flight"] = float(len(self._calls_by_id))
        details["reports_per_call"] = OUTPUT_TOKENS / STEP_TOKENS
        return Reading({FIGURE: calls / spent_s}, details)

    def _advance(self, calls: int) -> int:
        begin = self.ended
        while self.ended - begin < calls:
            self._now_s += STEP_S
            for worker in self._workers.values():
                self._step(worker)
            self._handle(ev.Tick())
        return self.ended - begin

    def _step(self, worker: _Worker) -> None:
        """Generate ten tokens for each running call of one worker, and handle the consequences."""
        running = worker.running
        while worker.waiting and len(running) < self._batch:
            call_id = worker.waiting.popleft()
            running[call_id] = self._progress_at_start()
            self._handle(ev.CallStarted(call_id))
        for call_id in running:
            running[call_id] += STEP_TOKENS
        if running:
            self._handle(ev.TokensDecoded(tuple(running.items())))
        complete = [call_id for call_id, tokens in running.items() if tokens >= OUTPUT_TOKENS]
        for call_id in complete:
            del running[call_id]
            self._end(call_id)

    def _progress_at_start(self) -> int:
        """Return the initial progress of a call, so that later ones do not end together."""
        self._started += 1
        if self._started > len(self._workers) * self._batch:
            return 0
        return STEP_TOKENS * int(self._random.integers(OUTPUT_TOKENS // STEP_TOKENS))

    def _end(self, call_id: str) -> None:
        call, run = self._calls_by_id.pop(call_id)
        self.ended += 1
        usage = TokenUsage(call.input_tokens, call.system_tokens, 0, OUTPUT_TOKENS)
        self._handle(ev.CallEnded(call_id, "completed", usage))
        if run.calls_left:
            self._arrive(run)
        else:
            self._begin_run()

    def _begin_run(self) -> None:
        self._runs += 1
        client = int(self._random.integers(self._clients))
        self._arrive(_Run(client, self._runs, CALLS_PER_RUN))

    def _arrive(self, run: _Run) -> None:
        run.calls_left -= 1
        final = run.calls_left == 0
        call = self._source.call_of_run(run.number, run.client, final=final)
        self._calls_by_id[call.call_id] = (call, run)
        self._handle(ev.CallArrived(call))

    def _handle(self, event: ev.Event) -> None:
        begin_ns = wall_ns()
        commands = self.dispatcher.handle(event, self._now_s)
        self._spent_ns[_PARTS[type(event)]] += wall_ns() - begin_ns
        for command in commands:
            if isinstance(command, ev.Admit):
                self._workers[command.worker_id].waiting.append(command.call_id)
            else:
                assert isinstance(command, ev.InteractionEnded), command
