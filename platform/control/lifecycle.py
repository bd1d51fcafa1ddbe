"""The life of a call in control: submitted, accepted or rejected, granted, and ended with one row.

The dispatcher decides; this module executes its commands and passes the events of calls to it. Every
accepted or rejected call makes exactly one ledger row: the recorder writes it when the call leaves the
live calls. A call is in the journal and on disk before its grant is returned. No method suspends in the
middle of a change, so there is no lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fairserve.interactions.call import Call, TokenUsage
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.base.subscribers import Subscribers
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.capacity import (
    capacity_error,
    check_background_room,
    draining_rejection,
)
from fairserve.platform.control.forecast import OutputForecast
from fairserve.platform.control.journal.journal import Journal, JournalUnavailableError
from fairserve.platform.control.live_calls import LiveCalls
from fairserve.platform.control.messages import (
    CallEvent,
    Cancel,
    Grant,
    OnCancel,
    Progress,
    RejectCall,
    Release,
    RunEnded,
    RunEvent,
    ServerStopping,
    Submit,
)
from fairserve.platform.control.port import CallListener
from fairserve.platform.control.record import plain_of
from fairserve.platform.control.recorder import CallRecorder
from fairserve.platform.control.runs import LiveRuns
from fairserve.platform.control.translate import interaction_errors
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.admission import AdmissionOptions
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.dispatch.queue_places import RETRY_S, QueueBounds

logger = logging.getLogger(__name__)

FLUSH_S = 0.02
"""Longest time for which decoded tokens are collected for one event."""
PROGRESS_S = 1.0
"""Shortest time between two progress entries of a call in the journal."""


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """Bounds of control; see the settings of the same names."""

    max_queue_wait_s: float = 360.0
    max_queued_calls: int = 10_000
    """Queued calls of each model."""
    tenant_share: float = 1 / 4
    """Largest share of one tenant in the queued calls of a model, and in the live interactions."""
    user_share: float = 1 / 16
    """The same for one user."""
    lease_s: float = 60.0
    infer_parents: bool = True
    reopen_grace_s: float = 600.0
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)

    @property
    def queue_bounds(self) -> QueueBounds:
        """Bounds on the queued calls of a model."""
        calls = self.max_queued_calls
        of_tenant, of_user = (int(calls * each) for each in (self.tenant_share, self.user_share))
        return QueueBounds(calls, max(1, of_tenant), max(1, of_user))


class CallLifecycle:
    """All calls of control. Belongs to the event loop; ``runs`` is kept up to date from here."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        journal: Journal,
        options: ControlOptions,
        runs: LiveRuns,
        listeners: Sequence[CallListener],
        *,
        prices: PriceBook,
        require_lease: Callable[[], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.calls = LiveCalls(options.max_queue_wait_s, options.lease_s, listeners)
        """Read only."""
        self.followers: Subscribers[str, RunEvent] = Subscribers()
        """Followers of runs by the run's core id."""
        self.draining = False
        self._dispatcher, self._journal = dispatcher, journal
        self._options = options
        self._runs = runs
        self._listeners = listeners
        self._prices = prices
        self._require_lease = require_lease
        self._clock, self._wall = clock, wall
        self._recorder = CallRecorder(journal, clock, wall, listeners)
        self._forecast = OutputForecast()

    def use_prices(self, prices: PriceBook) -> None:
        """Price the calls that are submitted from now on."""
        self._prices = prices

    # --- requests of the API side, see the port ---------------------------------------------------

    async def submit(self, message: Submit, on_cancel: OnCancel) -> Grant | RejectCall:
        """See :class:`~fairserve.platform.control.port.ControlPort`."""
        call = message.call
        if call.clues:
            self._dispatcher.tracker.join(call, self._clock())
        live = CallState(
            call=call,
            record_id=message.record_id,
            fingerprint=message.fingerprint,
            submitted_s=self._clock(),
            accepted_at=self._wall(),
            on_cancel=on_cancel,
            turn=asyncio.get_running_loop().create_future(),
            repeats=message.user_agent_retry,
            source=message.source,
        )
        live.price = self._prices.at(call.pool, live.accepted_at)
        self.require_storage()
        if message.user_agent_retry:
            self._recorder.repeated(message.fingerprint)
            self._rename_repeated(call)
        check_background_room(self._dispatcher, call)
        if self.draining:
            return self._reject(live, draining_rejection(self._dispatcher, call, live.submitted_s))
        with interaction_errors(call):
            arrival = ev.CallArrived(call, live.accepted_at, live.price)
            commands = self._dispatcher.handle(arrival, live.submitted_s)
        first = commands[0] if commands else None
        if isinstance(first, ev.Refuse) and first.call_id == call.call_id:
            return self._reject(live, first)
        try:
            sequence = self._recorder.accepted(live)
        except JournalUnavailableError as error:  # unreachable: checked in the same step
            raise AssertionError("the journal was checked in the same step") from error
        self.calls.accept(live, live.submitted_s)
        run = self._dispatcher.tracker.get(call.interaction_id)
        age_s = 0.0 if run is None else live.submitted_s - run.opened_s
        live.run_opened_at = self._runs.call_accepted(call, live.accepted_at, run, age_s)
        self.save_run(call.interaction_id)
        live.block_keys = self._dispatcher.block_keys(call)
        self._publish(live, "queued")
        self.apply(commands)
        try:
            await self._journal.durable(sequence)
        except JournalUnavailableError as error:
            self._end(live, "failed", error="not journaled", journaled=False)
            raise _not_journaled(error) from error
        except asyncio.CancelledError:
            self.cancel(Cancel(call.call_id))
            raise
        return await self._turn(live)

    async def _turn(self, live: CallState) -> Grant | RejectCall:
        """Wait for the grant; the cancellation of the task withdraws the call."""
        try:
            return await live.turn
        except asyncio.CancelledError:
            self._withdraw(live)
            raise

    def progress(self, message: Progress) -> bool:
        """See the port."""
        live = self.calls.running(message.call_id)
        if live is None:
            return False
        now_s = self._clock()
        before, live.usage = live.usage, message.usage
        self.calls.renew(live, now_s)
        starts = message.started and not live.started
        if starts:
            live.started = True
            live.queue_s = now_s - live.submitted_s  # includes the wait in the worker's queue
            for listener in self._listeners:
                listener.call_started(live, now_s)
            cached = message.usage.cached_tokens if message.cached_tokens_reported else None
            self.take(ev.CallStarted(message.call_id, cached))
        grew = message.usage.output_tokens > before.output_tokens
        if grew and self.calls.decoded(message.call_id, message.usage.output_tokens):
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush)
        if now_s - live.journaled_s >= PROGRESS_S or (starts and live.unseen):
            live.journaled_s = now_s
            data = live.progress_data(self._estimated(live, now_s))
            self._journal.append("progress", live.record_id, data)
        return True

    def _estimated(self, live: CallState, now_s: float) -> TokenUsage:
        """Return the usage of a call with a forecast of the output that its worker does not report."""
        usage = live.usage
        if not live.unseen or usage.output_tokens or not usage.prompt_tokens:
            return usage
        output = self._forecast.output_tokens(live.call, live.running_s(now_s))
        return usage._replace(output_tokens=output)

    def moved(self, call_id: str, worker_id: str) -> bool:
        """See the port."""
        live = self.calls.running(call_id)
        if live is None:
            return False
        try:
            commands = self._dispatcher.handle(ev.CallMoved(call_id, worker_id), self._clock())
        except (KeyError, ValueError) as error:
            logger.warning("a call was served by a worker that is not its own: %s", error)
            return False
        live.worker_id = worker_id
        self.apply(commands)
        return True

    def _flush(self) -> None:
        totals = self.calls.take_decoded()
        if totals:
            self.take(ev.TokensDecoded(totals))

    async def release(self, message: Release) -> Grant | None:
        """See the port."""
        live = self.calls.running(message.call_id)
        if live is None:
            return None  # its lease had ended, or control had stopped it
        if not message.retry_on_another_worker:
            live.usage = message.usage
            self._end(
                live,
                message.outcome,
                ttft_s=message.ttft_s,
                error=message.error,
                continuation_keys=message.continuation_keys,
                requested_tools=message.requested_tools,
            )
            return None
        now_s = self._clock()
        self.calls.wait_again(live, now_s)
        self._publish(live, "queued")
        self.apply(self._dispatcher.handle(ev.CallReturned(message.call_id), now_s))
        granted = await self._turn(live)
        assert isinstance(granted, Grant), "a call that was admitted once is never rejected"
        return granted

    def cancel(self, message: Cancel) -> None:
        """See the port."""
        live = self.calls.get(message.call_id)
        if live is None:
            return
        if live.worker_id is None:
            self._end(live, message.outcome, error=message.reason)
        else:
            self._withdraw(live)

    def _withdraw(self, live: CallState) -> None:
        """End a call whose client disconnected, if it has not ended."""
        if self.calls.get(live.call.call_id) is live:
            self._end(live, "cancelled", error="client disconnected")

    # --- requests of control ----------------------------------------------------------------------

    def require_storage(self, what: str = "call") -> None:
        """Raise UnavailableError if another server may hold the database, or the journal is full."""
        self._require_lease()
        try:
            self._journal.check()
        except JournalUnavailableError as error:
            raise _not_journaled(error, what) from error

    def save_run(self, run_id: str) -> None:
        """Write the state of an open run that a restart cannot derive from its calls."""
        run = self._dispatcher.tracker.get(run_id)
        record = None if run is None else self._runs.unsaved(run)
        if record is not None:
            self._journal.append("open_interaction", run_id, plain_of(record))

    def take(self, event: ev.Event) -> None:
        """Pass an event to the dispatcher and execute its commands. Errors are logged."""
        try:
            self.apply(self._dispatcher.handle(event, self._clock()))
        except (KeyError, ValueError) as error:
            logger.warning("%s was not applied: %s", type(event).__name__, error)

    def apply(self, commands: list[ev.Command]) -> None:
        """Execute commands of the dispatcher."""
        for command in commands:
            match command:
                case ev.Admit():
                    self._grant(command)
                case ev.CancelCall():
                    self._cancelled(command)
                case ev.InteractionEnded():
                    record = self._runs.ended(command, self._wall())
                    self._recorder.run_ended(command.interaction_id, record)
                    self.followers.publish(command.interaction_id, RunEnded())
                case ev.Refuse():
                    self._displaced(command)

    async def drain(self, timeout_s: float) -> None:
        """Reject new calls, wait for the others, then end the remaining ones as failed."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self.calls.none_left()
        except TimeoutError:
            logger.warning("%d calls did not end in time", len(self.calls))
        # Queued calls first: the end of a running call would grant them.
        for live in sorted(self.calls, key=lambda live: live.worker_id is not None):
            self._stop(live, "failed", "server stopped", "the server is stopping")
        self.followers.publish_all(ServerStopping())

    def end_overdue(self, now_s: float) -> None:
        """Expire waits and leases."""
        for live in self.calls.wait_expired(now_s):
            pool = self._dispatcher.pool_of(live.call.pool)
            what = (
                "had room for the run's memory"
                if pool.holds(live.call)
                else "was free for the call"
            )
            message = f"no worker {what} within {self._options.max_queue_wait_s:g} s"
            self._stop(live, "expired", "queue wait over", message, pool.expected_wait_s)
        for live in self.calls.lease_expired(now_s):
            self._stop(live, "failed", "lease ended without progress", "")

    # --- steps ------------------------------------------------------------------------------------

    def _rename_repeated(self, call: Call) -> None:
        """Give a new id to a repeated call whose client chose the id: it is another attempt."""
        run = self._dispatcher.tracker.get(call.interaction_id)
        if run is None or call.call_id not in run:
            return
        first, number = call.call_id, 2
        while call.call_id in run:
            call.call_id = f"{first}~{number}"
            number += 1

    def _reject(self, live: CallState, rejection: ev.Refuse) -> RejectCall:
        self._recorder.rejected(live, rejection)
        error = capacity_error(rejection)
        if error is not None:
            raise error
        call, decision = live.call, rejection.decision
        return RejectCall(
            call.call_id, call.interaction_id, call.stage, decision, rejection.mid_run
        )

    def _grant(self, command: ev.Admit) -> None:
        live = self.calls.grant(command.call_id, command.worker_id, self._clock())
        self._publish(live, "running")
        grant = Grant(
            call_id=command.call_id,
            interaction_id=live.call.interaction_id,
            stage=command.stage,
            worker_id=command.worker_id,
            client_id=command.client_id,
            weight=command.weight,
            queue_s=live.queue_s or 0.0,
            lease_s=self._options.lease_s,
            expected_output_tokens=live.call.expected_output_tokens,
            traceparent=live.traceparent,
            held=command.held,
        )
        if not live.turn.done():
            live.turn.set_result(grant)

    def _cancelled(self, command: ev.CancelCall) -> None:
        """Stop a call whose run was cancelled."""
        live = self.calls.get(command.call_id)
        if live is None:
            return
        if command.worker_id is None:
            self._forget(live)
            self._recorder.ended(live, command.outcome, error="interaction cancelled")
            self._publish(live, command.outcome, error="interaction cancelled")
            _fail_turn(live, "its interaction was cancelled", "interaction_cancelled")
        else:
            live.on_cancel(
                Cancel(command.call_id, command.outcome, "its interaction was cancelled")
            )

    def _displaced(self, rejection: ev.Refuse) -> None:
        """Reject a queued call whose place went to another client's."""
        live = self.calls.get(rejection.call_id)
        assert live is not None, "a queued call is live"
        self.calls.forget(live)
        self._runs.call_withdrawn(live.call)
        self._recorder.ended(live, "refused", rejection=rejection)
        self._publish(live, "refused", error=rejection.decision.reason)
        error = capacity_error(rejection)
        assert error is not None, "it is rejected for want of a place"
        if not live.turn.done():
            live.turn.set_exception(error)

    def _stop(
        self,
        live: CallState,
        outcome: ev.CallOutcome,
        error: str,
        message: str,
        retry_after_s: float = 0.0,
    ) -> None:
        """End a call, and notify the task that waits for it or carries its answer."""
        granted = live.worker_id is not None
        self._end(live, outcome, error=error)
        if granted:
            live.on_cancel(Cancel(live.call.call_id, outcome, error))
        code = "queue_timeout" if outcome == "expired" else "unavailable"
        _fail_turn(live, message or error, code, retry_after_s)

    def _end(
        self,
        live: CallState,
        outcome: ev.CallOutcome,
        *,
        ttft_s: float | None = None,
        error: str = "",
        journaled: bool = True,
        continuation_keys: tuple[int, ...] = (),
        requested_tools: bool = False,
    ) -> None:
        """End a live call: first in the dispatcher, then its row, then the resulting commands."""
        call_id = live.call.call_id
        now_s = self._clock()
        if outcome == "completed":
            running_s = live.running_s(now_s)
            self._forecast.completed(live.call, live.usage.output_tokens, running_s)
        else:
            estimated = self._estimated(live, now_s)
            live.estimated, live.usage = estimated != live.usage, estimated
        event: ev.Event
        if live.worker_id is None:
            event = ev.CancelRequested(call_id, outcome)
        else:
            event = ev.CallEnded(
                call_id, outcome, live.usage, continuation_keys, requested_tools, live.charged
            )
        commands = self._dispatcher.handle(event, now_s)
        self._forget(live)
        if journaled:
            self._recorder.ended(live, outcome, ttft_s=ttft_s, error=error)
        else:
            self._recorder.dropped(live)
        self._publish(live, outcome, ttft_s=ttft_s, error=error)
        self.apply(commands)

    def _publish(
        self, live: CallState, state: str, *, ttft_s: float | None = None, error: str = ""
    ) -> None:
        """Publish the state of a call to the followers of its run."""
        run_id = live.call.interaction_id
        if run_id in self.followers:
            now_s, now_at = self._clock(), self._wall()
            record = live.record(
                "completed", now_s=now_s, ended_at=now_at, ttft_s=ttft_s, error=error
            )
            self.followers.publish(run_id, CallEvent(state, record))

    def _forget(self, live: CallState) -> None:
        self.calls.forget(live)
        spent = live.usage.prompt_tokens + live.usage.output_tokens
        self._runs.call_ended(live.call, spent, self._wall())


def _fail_turn(live: CallState, message: str, code: str, retry_after_s: float = 0.0) -> None:
    """End the wait of a call; its client may retry after so many seconds, ``RETRY_S`` at least."""
    if not live.turn.done():
        headers = {"Retry-After": f"{math.ceil(max(RETRY_S, retry_after_s))}"}
        error = UnavailableError(message, code=code, headers=headers)
        live.turn.set_exception(error)


def _not_journaled(error: JournalUnavailableError, what: str = "call") -> UnavailableError:
    return UnavailableError(
        f"the {what} cannot be accepted: {error}",
        code="journal_unavailable",
        headers={"Retry-After": "5"},
    )
