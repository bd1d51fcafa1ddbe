"""Replays a trace through the serving dispatcher and simulated workers, in virtual time.

The loop is closed: a call arrives ``gap_s`` after its dependencies have ended, so slow service
delays the rest of its run. A rejected call aborts its run, or is retried after ``Retry-After``. The
result is deterministic: events are ordered by time, then arrivals before deliveries before passes
before ticks, then by creation.

Cost: the dispatcher's per call, the workers' per pass, and a report of all running calls at every
tick.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fairserve.engine.simulated.cost_model import CostModel, Loop
from fairserve.engine.simulated.mixed_worker import MixedWorker
from fairserve.engine.simulated.paged_worker import PagedWorker
from fairserve.engine.simulated.plans import Plans, check_sizes
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_profiles import ReplayProfiles
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.replay_watcher import ReplayWatcher
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.engine.simulated.worker import SimulatedWorker
from fairserve.interactions.call import Call, TokenUsage, client_id
from fairserve.scheduling import events as ev
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.metrics import CallSample, RunSample
from fairserve.scheduling.registry import LOCAL_SCHEDULERS
from fairserve.scheduling.system import SystemConfig

WORKERS: Mapping[Loop, type[SimulatedWorker]] = {
    "prefill-first": SimulatedWorker,
    "mixed": MixedWorker,
    "paged": PagedWorker,
    "vtc-artifact": SimulatedWorker,
}
"""Worker class by loop: ``factory(costs, scheduler, block_tokens, listener)``."""

_ARRIVAL, _DELIVERY, _PASS, _TICK = range(4)


@dataclass(slots=True, eq=False)
class _Run:
    """An active interaction."""

    interaction: Interaction
    waits: dict[str, int]
    """Number of dependencies of each call that have not ended."""
    dependents: dict[str, list[TraceCall]]
    left: int
    """Number of calls that have not ended."""
    tries: int = 0
    aborted: bool = False


@dataclass(slots=True, eq=False)
class _Live:
    """A call from arrival to end."""

    call: Call
    planned: TraceCall
    run: _Run
    arrival_s: float
    started_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0
    worker: int = -1


@dataclass(frozen=True, slots=True)
class _FirstTokenTimeout:
    """The latest time at which a client accepts the first token of a call."""

    live: _Live


_Due = Interaction | _Live | _FirstTokenTimeout | ev.Admit | int | None
"""Event in the queue: a run or a call arrives, a client's time-out, a grant reaches its worker, a
worker's pass ends (the worker's number), or a tick."""


class Replay:
    """Replay of one trace with one system. :meth:`run` may be called once."""

    def __init__(
        self,
        trace: Trace,
        system: SystemConfig,
        costs: CostModel,
        options: ReplayOptions = ReplayOptions(),
        watcher: ReplayWatcher | None = None,
    ) -> None:
        self._watcher = watcher
        check_sizes(trace, costs)
        self._trace, self._costs, self._options = trace, costs, options
        self._plans = Plans(trace, options.isolation)
        self._profiles = ReplayProfiles(trace, options)
        self._dispatcher = Dispatcher(system, seed=options.seed, block_tokens=trace.block_tokens)
        self._workers = [
            WORKERS[costs.loop](
                costs,
                LOCAL_SCHEDULERS[system.local](**system.local_options),
                trace.block_tokens,
                self,
            )
            for _ in range(options.workers)
        ]
        self._queue: list[tuple[float, int, int, _Due]] = []
        self._made = 0
        self._wakes = [math.inf] * options.workers
        self._ticking = False
        self._now_s = 0.0
        self._live: dict[str, _Live] = {}
        self._calls: list[CallSample] = []
        self._runs: list[RunSample] = []
        self._open_runs: dict[str, _Run] = {}
        self._waiting: deque[Interaction] = deque()
        """Runs that wait until fewer are open."""
        self._announce()

    def _announce(self) -> None:
        options, handle = self._options, self._dispatcher.handle
        for event in self._profiles.declared():
            handle(event, 0.0)
        users = {(each.tenant, each.user) for each in self._trace.interactions}
        for tenant, user in sorted(users):
            if user in options.weights:
                handle(ev.UserChanged(tenant, user, weight=options.weights[user]), 0.0)
        for setting in options.settings:
            handle(setting, 0.0)
        for number, worker in enumerate(self._workers):
            slots = self._costs.max_running
            handle(ev.WorkerJoined(_name(number), worker.kv_capacity_tokens, slots=slots), 0.0)

    # --- the loop ---------------------------------------------------------------------------------

    def run(self, progress: Callable[[int, int], None] | None = None) -> ReplayResult:
        """Replay the whole trace, or until ``until_s``. ``progress`` receives ended and total calls."""
        for interaction in self._trace.interactions:
            self._push(interaction.arrival_s, _ARRIVAL, interaction)
        total, reported = self._trace.calls, 0
        while self._queue:
            now_s, _, _, what = heapq.heappop(self._queue)
            if now_s > self._options.until_s:
                self._stop()
                break
            self._now_s = now_s
            self._take(what)
            if progress is not None and len(self._calls) >= reported + 500:
                reported = len(self._calls)
                progress(reported, total)
        assert not self._live, f"{len(self._live)} calls never ended"
        begin_s = min((call.arrival_s for call in self._calls), default=0.0)
        span_s = max((call.end_s for call in self._calls), default=0.0) - begin_s
        busy_s = sum(worker.busy_s for worker in self._workers)
        busy_share = busy_s / (span_s * len(self._workers)) if span_s > 0 else 0.0
        return ReplayResult(self._calls, self._runs, busy_share, self._profiles.changes)

    def _stop(self) -> None:
        """End all calls at ``until_s``."""
        self._now_s = self._options.until_s
        generated = dict(
            total for worker in self._workers for total in worker.progress(self._now_s)
        )
        for live in list(self._live.values()):
            usage = self._usage(live, generated.get(live.call.call_id, 0))
            self._forget(live, "cancelled", usage)

    def _push(self, at_s: float, kind: int, what: _Due) -> None:
        self._made += 1
        heapq.heappush(self._queue, (at_s, kind, self._made, what))

    def _take(self, what: _Due) -> None:
        match what:
            case int():
                if self._workers[what].next_s <= self._now_s:
                    self._wakes[what] = math.inf
                    self._workers[what].advance(self._now_s)
            case _Live():
                self._submit(what)
            case Interaction():
                self._begin_run(what)
            case _FirstTokenTimeout():
                self._timed_out(what.live)
            case ev.Admit():
                self._deliver(what)
            case None:
                self._tick()
        self._wake_workers()

    def _wake_workers(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.next_s < self._wakes[number]:
                self._wakes[number] = worker.next_s
                self._push(worker.next_s, _PASS, number)

    def _tick(self) -> None:
        totals: tuple[tuple[str, int], ...] = ()
        if self._options.call_reports == "tokens":
            totals = tuple(
                total for worker in self._workers for total in worker.progress(self._now_s)
            )
        if totals:
            self._apply(self._dispatcher.handle(ev.TokensDecoded(totals), self._now_s))
        events: list[ev.Event] = [*self._profiles.due(self._now_s), ev.Tick()]
        for event in events:
            self._apply(self._dispatcher.handle(event, self._now_s))
        self._ticking = bool(self._live)
        if self._ticking:
            self._push(self._now_s + self._options.tick_s, _TICK, None)

    # --- runs and calls ---------------------------------------------------------------------------

    def _begin_run(self, interaction: Interaction) -> None:
        if len(self._open_runs) == self._options.open_runs:
            self._waiting.append(interaction)
            return
        dependents: dict[str, list[TraceCall]] = {}
        for call in interaction.calls:
            for dep in call.deps:
                dependents.setdefault(dep, []).append(call)
        waits = {call.call_id: len(call.deps) for call in interaction.calls}
        run = _Run(interaction, waits, dependents, len(interaction.calls))
        self._open_runs[interaction.interaction_id] = run
        for call in interaction.calls:
            if not call.deps:
                self._plan(run, call)

    def _plan(self, run: _Run, planned: TraceCall) -> None:
        """Schedule the arrival of a call after its gap."""
        at_s = self._now_s + planned.gap_s
        live = _Live(self._plans.call(run.interaction, planned), planned, run, at_s)
        live.call.streamed = self._options.call_reports == "tokens"
        if planned.gap_s > 0:
            self._push(at_s, _ARRIVAL, live)
        else:
            self._submit(live)

    def _submit(self, live: _Live) -> None:
        """Submit an arriving call."""
        if live.run.aborted:
            return
        call = live.call
        if call.block_keys is None:
            call.block_keys = self._plans.block_keys(live.run.interaction, live.planned)
        commands = self._dispatcher.handle(ev.CallArrived(call), self._now_s)
        if commands and isinstance(commands[0], ev.Refuse):
            self._rejected(live, commands[0])
            return
        self._live[call.call_id] = live
        latest_s = live.arrival_s + self._options.first_token_timeout_s
        if latest_s < math.inf:
            self._push(latest_s, _TICK, _FirstTokenTimeout(live))
        if not self._ticking:
            self._ticking = True
            self._push(self._now_s + self._options.tick_s, _TICK, None)
        self._apply(commands)

    def _rejected(self, live: _Live, rejection: ev.Refuse) -> None:
        run = live.run
        sample = self._sample(live, "refused", TokenUsage())
        self._note(live, replace(sample, mid_run=rejection.mid_run), rejection)
        if run.tries < self._options.retries:
            run.tries += 1
            wait_s = rejection.decision.retry_after_s or 1.0
            again = _Live(live.call, live.planned, run, live.arrival_s)
            self._push(self._now_s + wait_s, _ARRIVAL, again)
            return
        if rejection.mid_run:
            self._abort(run)
        else:
            run.aborted = True
            self._end_run(run, complete=False, wasted_tokens=0, cause="throttled")

    def _timed_out(self, live: _Live) -> None:
        """Abort the run of a call that the client has waited for too long."""
        if live.first_token_s is None and self._live.get(live.call.call_id) is live:
            self._abort(live.run)

    def _abort(self, run: _Run) -> None:
        """Close a run, and cancel its calls."""
        run.aborted = True
        closed = ev.InteractionClosed(run.interaction.interaction_id, cancel=True)
        self._apply(self._dispatcher.handle(closed, self._now_s))

    def _apply(self, commands: list[ev.Command]) -> None:
        for command in commands:
            match command:
                case ev.Admit():
                    if self._options.dispatch_delay_s > 0:
                        at_s = self._now_s + self._options.dispatch_delay_s
                        self._push(at_s, _DELIVERY, command)
                    else:
                        self._deliver(command)
                case ev.CancelCall():
                    self._cancelled(command)
                case ev.InteractionEnded():
                    self._profiles.run_ended(command, self._now_s)
                    run = self._open_runs.get(command.interaction_id)
                    if run is not None:
                        if self._watcher is not None:
                            opened_s = run.interaction.arrival_s
                            self._watcher.run_ended(command, opened_s, self._now_s)
                        self._end_run(
                            run,
                            complete=command.state == "complete",
                            wasted_tokens=command.wasted_tokens,
                            cause=command.cause,
                        )
                case ev.Refuse():
                    raise AssertionError("only an arriving call is rejected")

    def _deliver(self, admit: ev.Admit) -> None:
        live = self._live.get(admit.call_id)
        if live is None:
            return  # cancelled in flight
        call, planned = live.call, live.planned
        live.worker = _number(admit.worker_id)
        outputs = planned.output_tokens * planned.samples
        keys = call.block_keys or ()
        output_keys: BlockKeys = ()
        if self._costs.loop == "paged":
            run, next_calls = live.run, live.run.dependents.get(planned.call_id, ())
            output_keys = self._plans.output_keys(run.interaction, planned, keys, next_calls)
        self._workers[live.worker].add(
            LocalCall(
                call.call_id,
                admit.client_id,
                call.prompt_tokens,
                outputs,
                weight=admit.weight,
                output_tokens=outputs,
                expected_output_tokens=call.expected_output_tokens,
            ),
            keys,
            output_keys=output_keys,
            samples=planned.samples,
            output_tokens=planned.output_tokens,
            now_s=self._now_s,
        )

    def _cancelled(self, command: ev.CancelCall) -> None:
        live = self._live[command.call_id]
        if command.worker_id is None:
            self._forget(live, "cancelled", TokenUsage())
            return
        output_tokens = 0
        if live.worker >= 0:
            output_tokens = self._workers[live.worker].cancel(command.call_id, self._now_s)
        self._end_call(live, "cancelled", output_tokens)

    def _end_call(self, live: _Live, outcome: ev.CallOutcome, output_tokens: int) -> None:
        usage = self._usage(live, output_tokens)
        commands = self._dispatcher.handle(
            ev.CallEnded(live.call.call_id, outcome, usage), self._now_s
        )
        self._forget(live, outcome, usage)
        self._apply(commands)

    def _usage(self, live: _Live, output_tokens: int) -> TokenUsage:
        if live.first_token_s is None:
            return TokenUsage()
        call = live.call
        return TokenUsage(call.input_tokens, call.system_tokens, live.cached_tokens, output_tokens)

    def _forget(self, live: _Live, outcome: ev.CallOutcome, usage: TokenUsage) -> None:
        del self._live[live.call.call_id]
        self._profiles.call_ended(live.call, usage, live.arrival_s)
        self._note(live, self._sample(live, outcome, usage))

    def _note(self, live: _Live, sample: CallSample, rejection: ev.Refuse | None = None) -> None:
        self._calls.append(sample)
        if self._watcher is not None:
            worker = None if live.worker < 0 else _name(live.worker)
            self._watcher.call_ended(live.call, sample, worker, rejection)

    def _sample(self, live: _Live, outcome: ev.CallOutcome, usage: TokenUsage) -> CallSample:
        interaction = live.run.interaction
        started_s = live.started_s
        return CallSample(
            client=client_id((interaction.tenant, interaction.user)),
            interaction_id=interaction.interaction_id,
            arrival_s=live.arrival_s,
            end_s=self._now_s,
            outcome=outcome,
            usage=usage,
            queue_delay_s=None if started_s is None else started_s - live.arrival_s,
            first_token_s=live.first_token_s,
            group=interaction.group,
        )

    def _end_run(self, run: _Run, *, complete: bool, wasted_tokens: int, cause: str) -> None:
        interaction = run.interaction
        del self._open_runs[interaction.interaction_id]
        self._runs.append(
            RunSample(
                client=client_id((interaction.tenant, interaction.user)),
                interaction_id=interaction.interaction_id,
                start_s=interaction.arrival_s,
                end_s=self._now_s,
                complete=complete,
                wasted_tokens=wasted_tokens,
                cause=cause,
                group=interaction.group,
            )
        )
        if self._waiting:
            self._begin_run(self._waiting.popleft())

    # --- events of the workers --------------------------------------------------------------------

    def started(self, call_id: str, cached_tokens: int, now_s: float) -> None:
        """Handle :meth:`~fairserve.engine.simulated.worker.Listener.started`."""
        live = self._live[call_id]
        live.started_s, live.cached_tokens = now_s, cached_tokens
        if self._options.call_reports != "ends":
            self._apply(self._dispatcher.handle(ev.CallStarted(call_id, cached_tokens), now_s))

    def first_token(self, call_id: str, now_s: float) -> None:
        """Handle :meth:`~fairserve.engine.simulated.worker.Listener.first_token`."""
        self._live[call_id].first_token_s = now_s

    def ended(self, call_id: str, output_tokens: int, now_s: float) -> None:
        """Handle :meth:`~fairserve.engine.simulated.worker.Listener.ended`."""
        live = self._live[call_id]
        run = live.run
        self._end_call(live, "completed", output_tokens)
        run.left -= 1
        for dependent in run.dependents.get(live.planned.call_id, ()):
            run.waits[dependent.call_id] -= 1
            if not run.waits[dependent.call_id] and not run.aborted:
                self._plan(run, dependent)
        if not run.left and len(run.interaction.calls) > 1:
            closed = ev.InteractionClosed(run.interaction.interaction_id)
            self._apply(self._dispatcher.handle(closed, now_s))


def _name(number: int) -> str:
    return f"worker-{number}"


def _number(worker_id: str) -> int:
    return int(worker_id.removeprefix("worker-"))
