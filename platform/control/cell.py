"""The cell: all of control as one state machine without I/O.

    event, time -> dispatcher, calls, runs, leases, forecasts -> outputs

The cell takes the messages of calls, the events of the dispatcher, and those of
:mod:`fairserve.platform.control.cell_events`. Its outputs are the answers to calls, the calls that must
stop, the rows for the journal, and the steps of calls and runs for their listeners. It reads no clock
and has no randomness: the same events at the same times give the same outputs, in any process, and a
``snapshot`` plus the later events gives the state of an uninterrupted cell to the last bit.

Every accepted or rejected call makes exactly one ledger row, in the event that ends it. An answer to a
call follows its ``accepted`` row in the outputs: whoever executes them stores the row before the answer
is used.

Cost per call: the dispatcher's, and about a fifth of it for the tables and rows here.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import astuple
from typing import Any

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.errors import InteractionError
from fairserve.interactions.tracking.run import Run
from fairserve.interactions.tracking.tracker import TrackerLimits
from fairserve.platform.base.errors import FairServeError, PermissionDeniedError, UnavailableError
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.capacity import (
    capacity_error,
    check_background_room,
    check_tier,
    draining_rejection,
)
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CallChange,
    CallMessage,
    CallsLost,
    CellEvent,
    ClockSet,
    DecodedTokensDue,
    Draining,
    JournalRow,
    NotStored,
    Output,
    PricesChanged,
    RunBegan,
    RunOver,
    RunRestored,
    SystemChanged,
)
from fairserve.platform.control.forecast import OutputForecast
from fairserve.platform.control.live_calls import LiveCalls
from fairserve.platform.control.messages import (
    USER_BLOCKED,
    Attached,
    Cancel,
    Grant,
    Progress,
    RejectCall,
    Release,
    Submit,
)
from fairserve.platform.control.options import ControlOptions
from fairserve.platform.control.record import plain_of
from fairserve.platform.control.recorder import CallRecorder
from fairserve.platform.control.runs import LiveRuns
from fairserve.platform.control.translate import api_error
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.dispatch.queue_places import RETRY_S
from fairserve.scheduling.dispatch.switch import switch_system
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.quotas.price import TokenPrice

logger = logging.getLogger(__name__)

BLOCK_TOKENS = 16
"""Block size of the prefixes that the router distinguishes, in tokens."""
PROGRESS_S = 1.0
"""Shortest time between two progress entries of a call in the journal."""


class Cell:
    """Control of one fair order. Times are seconds of one clock that does not go back."""

    def __init__(
        self,
        system: SystemConfig,
        options: ControlOptions = ControlOptions(),
        *,
        seed: int = 0,
        parameters: Mapping[str, Any] | None = None,
        prices: PriceBook | None = None,
    ) -> None:
        """``seed`` keys the prefix hashes and the ids of shared rows: keep it secret.

        UTC time is that of the clock until a ClockSet.
        """
        self.system = system
        """System in force, without its ``parameters``; read-only, as all attributes are."""
        self.parameters = dict(parameters or {})
        self.options = options
        self._seed = seed
        self.dispatcher = self._new_dispatcher()
        self.calls = LiveCalls(options.max_queue_wait_s, options.lease_s)
        self.runs = LiveRuns(lambda tenant: self.outputs.append(RunBegan(tenant)))
        self.draining = False
        self.outputs: list[Output] = []
        """Outputs of the last event, in their order, also if it raised an error."""
        self._recorder = CallRecorder(seed)
        self._forecast = OutputForecast()
        self._prices = PriceBook() if prices is None else prices
        self._utc_offset_s = 0.0
        self._now_s = self._now_at = -math.inf
        """Time of the present event, and its UTC epoch seconds."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            Submit: self._submit,
            Progress: self._progress,
            Release: self._release,
            Cancel: self._withdraw,
            NotStored: self._drop,
            CallsLost: self._end_lost,
            Draining: self._drain,
            DecodedTokensDue: self._pass_decoded,
            ClockSet: self._set_clock,
            PricesChanged: self._change_prices,
            SystemChanged: self._change_system,
            RunRestored: self._restore_run,
            ev.InteractionOpened: self._open_run,
            ev.InteractionClosed: self._close_run,
            ev.CallMoved: self._move,
            ev.UserStopped: self._stop_user,
            ev.Tick: self._tick,
        }

    def _new_dispatcher(self) -> Dispatcher:
        options = self.options
        return Dispatcher(
            self.system.with_options(self.parameters),
            seed=self._seed,
            block_tokens=BLOCK_TOKENS,
            reopen_grace_s=options.reopen_grace_s,
            admission=options.admission,
            tracker_limits=TrackerLimits(
                tenant_share=options.tenant_share, user_share=options.user_share
            ),
            queue_bounds=options.queue_bounds,
        )

    # --- the interface ----------------------------------------------------------------------------

    def apply(self, event: CellEvent, now_s: float) -> list[Output]:
        """Apply an event at ``now_s``, which does not decrease; return the outputs.

        A call that is not accepted is answered with the error. Any other invalid event raises a
        FairServeError, ValueError or KeyError before it changes anything.
        """
        self._now_s, self._now_at = now_s, now_s + self._utc_offset_s
        self.outputs = []
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)
        else:
            self._handle(event)  # type: ignore[arg-type]  # an event of the dispatcher
        return self.outputs

    def utc_s(self, now_s: float) -> float:
        """Return the UTC epoch seconds of a time of the cell."""
        return now_s + self._utc_offset_s

    # --- a call is submitted ----------------------------------------------------------------------

    def _submit(self, message: Submit) -> None:
        live = CallState(
            call=copy(message.call),
            record_id=message.record_id,
            fingerprint=message.fingerprint,
            submitted_s=self._now_s,
            accepted_at=self._now_at,
            repeats=message.user_agent_retry,
            source=message.source,
        )
        try:
            self._enqueue(live)
        except FairServeError as error:
            self.outputs.append(CallAnswer(live.record_id, error))

    def _enqueue(self, live: CallState) -> None:
        call = live.call
        if call.clues:
            self.dispatcher.tracker.join(call, self._now_s)
        live.price = self._prices.at(call.served_model, live.accepted_at, call.pool).of_tier(
            call.tier
        )
        if live.repeats:
            waived = self._recorder.repeated(live.fingerprint, self._now_s)
            if waived is not None:
                self.outputs.append(waived)
            self._rename_repeated(call)
        check_tier(self.dispatcher.directory, call)
        check_background_room(self.dispatcher, call)
        if self.draining:
            self._reject(live, draining_rejection(self.dispatcher, call, self._now_s))
            return
        arrival = ev.CallArrived(call, live.accepted_at, live.price)
        commands = self._handled(arrival, call.app, call)
        attached = Attached(call.interaction_id, call.stage, call.run_rule)
        self.outputs.append(CallMessage(live.record_id, attached))
        first = commands[0] if commands else None
        if isinstance(first, ev.Refuse) and first.call_id == call.call_id:
            self._reject(live, first)
            return
        self.outputs.append(self._recorder.accepted(live))
        self.calls.accept(live, self._now_s)
        run = self.dispatcher.tracker.get(call.interaction_id)
        age_s = 0.0 if run is None else self._now_s - run.opened_s
        live.run_opened_at = self.runs.call_accepted(call, live.accepted_at, run, age_s)
        self._save_run(run)
        live.block_keys = self.dispatcher.block_keys(call)
        self.outputs.append(CallChange(live, "accepted"))
        self._execute(commands)

    def _rename_repeated(self, call: Call) -> None:
        """Give a new id to a repeated call whose client chose the id: it is another attempt.

        Attempts have consecutive numbers. O(log attempts).
        """
        run, first = self.dispatcher.tracker.get(call.interaction_id), call.call_id
        if run is None or first not in run:
            return

        def is_free(number: int) -> bool:
            return f"{first}~{number}" not in run

        free = 2
        while not is_free(free):
            free *= 2
        call.call_id = f"{first}~{bisect_left(range(free), True, lo=2, key=is_free)}"

    def _reject(self, live: CallState, rejection: ev.Refuse) -> None:
        """Record and answer a call that was not accepted."""
        row = self._recorder.rejected(live, rejection, now_s=self._now_s, ended_at=self._now_at)
        call, decision = live.call, rejection.decision
        error = capacity_error(rejection)
        answer: RejectCall | FairServeError = (
            RejectCall(call.call_id, decision, rejection.mid_run) if error is None else error
        )
        self.outputs += (row, CallAnswer(live.record_id, answer))
        self.outputs.append(CallChange(live, "rejected", reason=decision.reason))

    # --- a call runs ------------------------------------------------------------------------------

    def _progress(self, message: Progress) -> None:
        """Renew the lease of a call with its new usage; one that has ended is ignored."""
        live, now_s = self.calls.running(message.call_id), self._now_s
        if live is None:
            return
        before, live.usage = live.usage, message.usage
        self.calls.renew(live, now_s)
        self.outputs.append(CallChange(live, "progressed"))
        starts = message.started and not live.started
        if starts:
            live.started = True
            live.queue_s = now_s - live.submitted_s  # includes the wait in the worker's queue
            self.outputs.append(CallChange(live, "started"))
            cached = message.usage.cached_tokens if message.cached_tokens_reported else None
            self._report(ev.CallStarted(message.call_id, cached))
        if message.usage.output_tokens > before.output_tokens:
            self.calls.decoded(message.call_id, message.usage.output_tokens)
        if now_s - live.journaled_s >= PROGRESS_S or (starts and live.unseen):
            live.journaled_s = now_s
            data = live.progress_data(self._estimated(live))
            self.outputs.append(JournalRow("progress", live.record_id, data))

    def _pass_decoded(self, event: DecodedTokensDue) -> None:
        totals = self.calls.take_decoded()
        if totals:
            self._report(ev.TokensDecoded(totals))

    def _estimated(self, live: CallState) -> TokenUsage:
        """Return the usage of a call with a forecast of the output that its worker does not report."""
        usage = live.usage
        if not live.unseen or usage.output_tokens or not usage.prompt_tokens:
            return usage
        output = self._forecast.output_tokens(live.call, live.running_s(self._now_s))
        return usage._replace(output_tokens=output)

    def _move(self, event: ev.CallMoved) -> None:
        """Change the worker of a call that has started elsewhere; one that has ended is ignored."""
        live = self.calls.running(event.call_id)
        if live is None:
            return
        commands = self.dispatcher.handle(event, self._now_s)
        live.worker_id = event.worker_id
        self._execute(commands)

    # --- a call ends ------------------------------------------------------------------------------

    def _release(self, message: Release) -> None:
        """End a granted call, or requeue it. One that has ended or was stopped is ignored.

        A call that waits for its grant once more, because a state lacked it, ends after that grant.
        """
        live = self.calls.running(message.call_id)
        if live is None:
            waiting = self.calls.get(message.call_id)
            if waiting is not None and not message.retry_on_another_worker:
                waiting.release = message
            return
        if message.retry_on_another_worker:
            self.calls.wait_again(live, self._now_s)
            self.outputs.append(CallChange(live, "requeued"))
            self._handle(ev.CallReturned(message.call_id))
            return
        live.usage, live.ttft_s = message.usage, message.ttft_s
        self._end(
            live,
            message.outcome,
            message.error,
            continuation_keys=message.continuation_keys,
            requested_tools=message.requested_tools,
        )

    def _withdraw(self, message: Cancel) -> None:
        """End a call whose client disconnected, if it has not ended."""
        live = self.calls.get(message.call_id)
        if live is None:
            return
        if live.worker_id is None:
            self._end(live, message.outcome, message.reason)
        else:
            self._end(live, "cancelled", "client disconnected")

    def _drop(self, event: NotStored) -> None:
        live = self.calls.get(event.call_id)
        if live is not None:
            self._end(live, "failed", "not journaled", stored=False)

    def _end_lost(self, event: CallsLost) -> None:
        """End these calls; a server that is not dead after all gets the error, and stops them."""
        message = "the server of the call was cut off from the others for too long"
        found = (
            live for call_id in event.call_ids if (live := self.calls.get(call_id)) is not None
        )
        for live in _queued_first(found):
            if event.silent and live.worker_id is not None:
                return
            self._stop(live, "failed", "server lost", message)

    def _stop(
        self,
        live: CallState,
        outcome: ev.CallOutcome,
        error: str,
        message: str,
        retry_after_s: float = 0.0,
    ) -> None:
        """End a call, and notify the client that waits for it or carries its answer."""
        if live.worker_id is None:
            code = "queue_timeout" if outcome == "expired" else "unavailable"
            self._fail(live, message or error, code, retry_after_s)
        else:
            cancel = Cancel(live.call.call_id, outcome, message or error)
            self.outputs.append(CallMessage(live.record_id, cancel))
        self._end(live, outcome, error)

    def _fail(self, live: CallState, message: str, code: str, retry_after_s: float = 0.0) -> None:
        """Answer a queued call with an error; its client may retry after so many seconds."""
        headers = {"Retry-After": f"{math.ceil(max(RETRY_S, retry_after_s))}"}
        error = UnavailableError(message, code=code, headers=headers)
        self.outputs.append(CallAnswer(live.record_id, error))

    def _end(
        self,
        live: CallState,
        outcome: ev.CallOutcome,
        error: str,
        *,
        stored: bool = True,
        continuation_keys: tuple[int, ...] = (),
        requested_tools: bool = False,
    ) -> None:
        """End a live call: first in the dispatcher, then its row, then the resulting commands."""
        call_id = live.call.call_id
        if outcome == "completed":
            running_s = live.running_s(self._now_s)
            self._forecast.completed(live.call, live.usage.output_tokens, running_s)
        else:
            estimated = self._estimated(live)
            live.estimated, live.usage = estimated != live.usage, estimated
        event: ev.Event
        if live.worker_id is None:
            event = ev.CancelRequested(call_id, outcome)
        else:
            event = ev.CallEnded(
                call_id, outcome, live.usage, continuation_keys, requested_tools, live.charged
            )
        commands = self.dispatcher.handle(event, self._now_s)
        self._forget(live)
        if stored:
            self._record(live, outcome, error)
        else:
            self._recorder.dropped(live)
            self.outputs.append(CallChange(live, "dropped", outcome, error))
        self._execute(commands)

    def _forget(self, live: CallState) -> None:
        self.calls.forget(live)
        spent = live.usage.prompt_tokens + live.usage.output_tokens
        self.runs.call_ended(live.call, spent, self._now_at)

    def _record(
        self,
        live: CallState,
        outcome: ev.CallOutcome,
        error: str,
        rejection: ev.Refuse | None = None,
    ) -> None:
        """Put out the row and the last step of an accepted call."""
        self.outputs.append(
            self._recorder.ended(
                live,
                outcome,
                now_s=self._now_s,
                ended_at=self._now_at,
                error=error if rejection is None else "",
                rejection=rejection,
            )
        )
        self.outputs.append(CallChange(live, "ended", outcome, error))

    # --- runs -------------------------------------------------------------------------------------

    def _open_run(self, event: ev.InteractionOpened) -> None:
        self._execute(self._handled(event, event.app))
        self.runs.opened(event.interaction_id, event.tenant, event.app, event.user, self._now_at)
        self._save_run(self.dispatcher.tracker.get(event.interaction_id))

    def _restore_run(self, event: RunRestored) -> None:
        run = event.run
        commands = self._handled(ev.InteractionRestored(run), run.owner[1])
        self.runs.restored(run, event.opened_at, self._now_at - run.idle_age_s)
        self._execute(commands)

    def _close_run(self, event: ev.InteractionClosed) -> None:
        self._execute(self._handled(event, event.interaction_id.partition("/")[0]))
        self._save_run(self.dispatcher.tracker.get(event.interaction_id))

    def _stop_user(self, event: ev.UserStopped) -> None:
        self._execute(self.dispatcher.handle(event, self._now_s), blocked=True)

    def _save_run(self, run: Run | None) -> None:
        """Put out the state of an open run that a restart cannot derive from its calls."""
        record = None if run is None else self.runs.unsaved(run)
        if run is not None and record is not None:
            row = JournalRow("open_interaction", run.interaction_id, plain_of(record))
            self.outputs.append(row)

    # --- time and settings ------------------------------------------------------------------------

    def _tick(self, event: ev.Tick) -> None:
        """End the calls whose wait or lease is over, then pass the time to the dispatcher."""
        for live in self.calls.wait_expired(self._now_s):
            pool = self.dispatcher.pool_of(live.call.pool)
            what = (
                "had room for the run's memory"
                if pool.holds(live.call)
                else "was free for the call"
            )
            message = f"no worker {what} within {self.options.max_queue_wait_s:g} s"
            self._stop(live, "expired", "queue wait over", message, pool.expected_wait_s)
        for live in self.calls.lease_expired(self._now_s):
            self._stop(live, "failed", "lease ended without progress", "")
        self._handle(event)

    def _drain(self, event: Draining) -> None:
        self.draining = True
        if not event.ends:
            return
        for live in _queued_first(self.calls):
            self._stop(live, "failed", "server stopped", "the server is stopping")

    def _set_clock(self, event: ClockSet) -> None:
        self._utc_offset_s = event.utc_offset_s

    def _change_prices(self, event: PricesChanged) -> None:
        self._prices = event.prices

    def _change_system(self, event: SystemChanged) -> None:
        base = SYSTEMS[event.system]
        config = base.with_options(event.parameters)
        calls = [(live.call, live.worker_id, live.usage) for live in self.calls]
        switch_system(self.dispatcher, config, calls, self._seed, self._now_s)
        self.system, self.parameters = base, dict(event.parameters)
        self._handle(ev.Tick())

    # --- commands of the dispatcher ---------------------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        self._execute(self.dispatcher.handle(event, self._now_s))

    def _handled(self, event: ev.Event, app: str, call: Call | None = None) -> list[ev.Command]:
        """Pass an event that may not fit its run; return the commands."""
        try:
            return self.dispatcher.handle(event, self._now_s)
        except InteractionError as error:
            raise api_error(error, app, call) from error

    def _report(self, event: ev.Event) -> None:
        """Pass an event that follows from the report of a worker, whose errors are logged."""
        try:
            self._handle(event)
        except (KeyError, ValueError) as error:
            logger.warning("%s was not applied: %s", type(event).__name__, error)

    def _execute(self, commands: list[ev.Command], *, blocked: bool = False) -> None:
        """Execute commands; ``blocked`` if they stop the calls of a blocked user."""
        for command in commands:
            match command:
                case ev.Admit():
                    self._grant(command)
                case ev.CancelCall():
                    self._cancelled(command, blocked)
                case ev.InteractionEnded():
                    self._run_ended(command)
                case ev.Refuse():
                    self._displaced(command)

    def _grant(self, command: ev.Admit) -> None:
        live = self.calls.grant(command.call_id, command.worker_id, self._now_s)
        self.outputs.append(CallChange(live, "granted"))
        grant = Grant(
            call_id=command.call_id,
            worker_id=command.worker_id,
            client_id=command.client_id,
            weight=command.weight,
            queue_s=live.queue_s or 0.0,
            lease_s=self.options.lease_s,
            expected_output_tokens=live.call.expected_output_tokens,
            held=command.held,
        )
        self.outputs.append(CallAnswer(live.record_id, grant))
        if live.release is not None:
            self._release(live.release)

    def _cancelled(self, command: ev.CancelCall, blocked: bool) -> None:
        """Stop a call whose user was blocked, or else whose run was cancelled."""
        live = self.calls.get(command.call_id)
        if live is None:
            return
        reason = USER_BLOCKED if blocked else "its interaction was cancelled"
        if command.worker_id is not None:
            message = Cancel(command.call_id, command.outcome, reason)
            self.outputs.append(CallMessage(live.record_id, message))
            return
        if blocked:
            error = PermissionDeniedError(reason, code="user_blocked")
            self.outputs.append(CallAnswer(live.record_id, error))
        else:
            self._fail(live, reason, "interaction_cancelled")
        self._forget(live)
        self._record(live, command.outcome, reason if blocked else "interaction cancelled")

    def _displaced(self, rejection: ev.Refuse) -> None:
        """Reject a queued call whose place was given to another client's."""
        live = self.calls.get(rejection.call_id)
        assert live is not None, "a queued call is live"
        error = capacity_error(rejection)
        assert error is not None, "it is rejected for want of a place"
        self.calls.forget(live)
        self.runs.call_withdrawn(live.call)
        self.outputs.append(CallAnswer(live.record_id, error))
        self._record(live, "refused", rejection.decision.reason, rejection)

    def _run_ended(self, end: ev.InteractionEnded) -> None:
        record = self.runs.ended(end, self._now_at)
        row = self._recorder.run_ended(end.interaction_id, record, self._now_s)
        self.outputs += (row, RunOver(end))

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values, between two events; its times are the cell's.

        O(state): 5 s with 100,000 runs.
        """
        return {
            "system": self.system.name,
            "parameters": self.parameters,
            "dispatcher": self.dispatcher.snapshot(0.0),
            "calls": self.calls.snapshot(),
            "runs": self.runs.snapshot(),
            "recorder": self._recorder.snapshot(),
            "forecast": self._forecast.snapshot(),
            "prices": [
                [model, valid_from, *astuple(price)]
                for model, valid_from, price in self._prices.items()
            ],
            "utc_offset_s": self._utc_offset_s,
            "draining": self.draining,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a snapshot of a cell with the same options and seed.

        The clock must be the same, too: the times are not changed.
        """
        if state["system"] != self.system.name:
            self.system = SYSTEMS[state["system"]]
        self.parameters = dict(state["parameters"])
        self.dispatcher = self._new_dispatcher()
        self.dispatcher.restore(state["dispatcher"], 0.0)
        self.calls.restore(state["calls"], self.dispatcher)
        self.runs.restore(state["runs"])
        self._recorder.restore(state["recorder"], self.calls)
        self._forecast.restore(state["forecast"])
        self._prices = PriceBook(
            (model, valid_from, TokenPrice(*price)) for model, valid_from, *price in state["prices"]
        )
        self._utc_offset_s, self.draining = state["utc_offset_s"], state["draining"]


def _queued_first(calls: Iterable[CallState]) -> list[CallState]:
    """Return the calls in the order of their ends: that of a running one would grant queued ones."""
    return sorted(calls, key=lambda live: live.worker_id is not None)
