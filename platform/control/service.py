"""Control as a task of this process: a shell around the cell.

The cell (:mod:`fairserve.platform.control.cell`) decides. The shell gives it events and the time, and
executes its outputs: it writes rows to the journal, resolves the futures of the clients that wait,
stops calls, and notifies listeners and the followers of runs. One event loop owns both; other threads
pass their events to that loop. A call is in the journal and on disk before its grant is returned.

Weakness: the state lives in this process; after a crash the open runs are restored from the ledger, and
the counters of fairness start at zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairserve.interactions.tracking.run import RestoredRun
from fairserve.platform.base.clock import utc_s
from fairserve.platform.base.errors import FairServeError, UnavailableError
from fairserve.platform.base.subscribers import Subscribers
from fairserve.platform.control.budgets import BudgetOpenings, SpentBefore
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CallChange,
    CallMessage,
    CellEvent,
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
from fairserve.platform.control.journal.journal import JournalUnavailableError
from fairserve.platform.control.listener import CallListener
from fairserve.platform.control.messages import (
    CallEvent,
    Cancel,
    Grant,
    OnMessage,
    OnRunEvent,
    Progress,
    RejectCall,
    Release,
    RunEnded,
    RunEvent,
    RunView,
    ServerStopping,
    Submit,
)
from fairserve.platform.control.options import ControlOptions
from fairserve.platform.control.order import EventOrder, OwnOrder
from fairserve.platform.control.storage import RowsJournal
from fairserve.platform.control.views import ControlViews
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.scheduling.system import SystemConfig

logger = logging.getLogger(__name__)

STOPPED = "server stopped"
NOTHING = Cancel("")
"""An event without an effect, for who waits until earlier ones are applied."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """The client of a call, from its submission to its end."""

    record_id: str
    on_message: OnMessage
    turn: asyncio.Future[Grant | RejectCall]
    """Resolved by the next answer; a new one each time the call is requeued."""
    sequence: int | None = None
    """Number of the call's ``accepted`` entry in the journal."""
    worker_id: str = ""
    """Worker of the last grant."""
    call_id: str = ""
    traceparent: str = ""
    accepted: bool = False
    """True once the listeners know the call."""

    def answer(self, answer: Grant | RejectCall | FairServeError) -> str:
        """Resolve the turn; return the worker that has the call if a repeated grant names another."""
        if self.turn.done():
            other = isinstance(answer, Grant) and answer.worker_id != self.worker_id
            return self.worker_id if other else ""
        if isinstance(answer, Grant):
            self.worker_id = answer.worker_id
        if isinstance(answer, FairServeError):
            self.turn.set_exception(answer)
        elif self.traceparent and isinstance(answer, Grant):
            self.turn.set_result(replace(answer, traceparent=self.traceparent))
        else:
            self.turn.set_result(answer)
        return ""


MakeOrder = Callable[["ControlService"], EventOrder]


class ControlService(ControlViews):
    """Control as the rest of the platform uses it: calls, runs, views, and changes of settings.

    ``progress`` and ``cancel`` do not wait for their effect.
    """

    def __init__(
        self,
        system: SystemConfig,
        journal: RowsJournal,
        options: ControlOptions = ControlOptions(),
        *,
        seed: int = 0,
        parameters: Mapping[str, Any] | None = None,
        prices: PriceBook | None = None,
        spent: SpentBefore = lambda contract, until: (),
        require_lease: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = utc_s,
        order: MakeOrder | None = None,
    ) -> None:
        """``require_lease`` raises UnavailableError while another server may hold the database.

        ``clock`` and ``wall`` are those of ``order``; without one this process decides alone.
        """
        cell = Cell(system, options, seed=seed, parameters=parameters, prices=prices)
        super().__init__(cell, clock, wall)
        self._journal = journal
        self._require_lease = require_lease
        self._listeners: list[CallListener] = []
        self._listeners_of_all: list[CallListener] = []
        """Those that get the calls of other processes, too."""
        self._followers: Subscribers[str, RunEvent] = Subscribers()
        """Followers of runs by the run's core id."""
        self._waiters: dict[str, _Waiter] = {}
        """Clients of the live calls by record id."""
        self._granted: dict[str, _Waiter] = {}
        """Those with a grant, by call id; also of a call that an earlier state of the cell lacks."""
        self._search: asyncio.Task[None] | None = None
        """Task that looks for lost calls."""
        self._outputs: deque[Output] = deque()
        """Outputs that are not executed yet."""
        self._executing = False
        self._no_calls = asyncio.Event()
        """Set while control drains and no call is left."""
        self.openings = BudgetOpenings(spent, self.post)
        self._loop: asyncio.AbstractEventLoop | None = None
        if order is None:
            self.order: EventOrder = OwnOrder(self.cell, self.execute, clock, wall)
        else:
            self.order = order(self)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind to the running loop and start the ticks."""
        self._loop = asyncio.get_running_loop()
        self.order.start()

    async def drain(self, timeout_s: float) -> None:
        """Reject new calls, wait for the others, then end the remaining ones as failed.

        The calls are those of this process; another process that shares the order continues.
        """
        self._draining = True
        if not self.order.shared:
            self.order.put(Draining())
        self._check_empty()
        try:
            async with asyncio.timeout(timeout_s):
                await self._no_calls.wait()
        except TimeoutError:
            logger.warning("%d calls did not end in time", len(self._waiters))
        if self.order.shared:
            self._end_own_calls()
        else:
            self.order.put(Draining(ends=True))
        self._followers.publish_all(ServerStopping())

    def _end_own_calls(self) -> None:
        """End the calls of this process as failed, in an order that others share.

        Those that wait to be read in it are answered; the order ends them when this process is gone.
        """
        own = [live for live in self.cell.calls if live.record_id in self._waiters]
        for live in own:
            waiter, call_id = self._waiters[live.record_id], live.call.call_id
            if live.worker_id is None:
                self.order.put(Cancel(call_id, "failed", STOPPED))
                waiter.answer(_stopping())
            else:
                self.order.put(Release(call_id, "failed", live.usage, error=STOPPED))
                waiter.on_message(Cancel(call_id, "failed", STOPPED))
        self.order.end_waits(_stopping())

    async def close(self) -> None:
        """Stop the ticks."""
        if self._search is not None:
            self._search.cancel()
        await self.order.close()

    # --- outputs ----------------------------------------------------------------------------------

    def execute(self, outputs: Sequence[Output]) -> None:
        """Execute the outputs of an event, after those of earlier events.

        A client that is stopped may cause further ones.
        """
        self._outputs += outputs
        if self._executing:
            return
        self._executing, now_s = True, self._clock()
        rejected: list[str] = []
        """Calls that were not accepted, and of which the listeners still hear."""
        try:
            while self._outputs:
                output = self._outputs.popleft()
                match output:
                    case CallChange():
                        self._changed(output, now_s)
                    case JournalRow(kind, key):
                        sequence = self._append(output)
                        if kind == "accepted" and (waiter := self._waiters.get(key)) is not None:
                            waiter.sequence = sequence
                    case CallAnswer():
                        if (waiter := self._waiters.get(output.record_id)) is not None:
                            elsewhere = waiter.answer(output.answer)
                            if elsewhere and isinstance(output.answer, Grant):
                                self.order.put(ev.CallMoved(output.answer.call_id, elsewhere))
                            if waiter.sequence is None:
                                rejected.append(output.record_id)
                    case CallMessage():
                        if (waiter := self._waiters.get(output.record_id)) is not None:
                            waiter.on_message(output.message)
                    case RunBegan():
                        for listener in self._listeners:
                            listener.run_opened(output.tenant)
                    case RunOver():
                        for listener in self._listeners:
                            listener.run_ended(output.end)
                        self._followers.publish(output.end.interaction_id, RunEnded())
        finally:
            self._executing = False
            for record_id in rejected:
                self._waiters.pop(record_id, None)

    def _append(self, row: JournalRow) -> int:
        """Append a row to the journal; return its number.

        Raises JournalUnavailableError for a call that this process alone would accept. One that is in a
        shared order is accepted by all: where the journal takes no new call, its end alone is kept.
        """
        try:
            return self._journal.append(row.kind, row.key, row.data)
        except JournalUnavailableError:
            if not self.order.shared:
                raise
            return 0

    def replaced(self, before: Sequence[CallState]) -> None:
        """Handle that the cell has another state than the one with these calls, in a shared order.

        The outputs that lead to it are not known here. A call of this process that was granted in them
        is queued once more, for a grant that is read. The order writes what it has put lately once more,
        and calls in progress continue. A client whose call is not in the state after that gets an error.
        """
        for listener in self._listeners_of_all:
            for live in before:
                listener.call_dropped(live)
            for live in self.cell.calls:
                listener.call_accepted(live, self._clock())
                if live.worker_id is not None:
                    listener.call_granted(live)
                if live.started:
                    listener.call_started(live, self._clock())
        for live in self.cell.calls:
            waiter = self._waiters.get(live.record_id)
            if waiter is not None:
                waiter.sequence = waiter.sequence or 0
                if live.worker_id is not None and not waiter.turn.done():
                    again = Release(
                        live.call.call_id, "failed", live.usage, retry_on_another_worker=True
                    )
                    self.order.put(again)
        if self._search is not None:
            self._search.cancel()
        self._search = asyncio.create_task(self._fail_lost([*self._waiters]), name="lost calls")

    def answered(self) -> None:
        """Handle that another version decides from now on, and answers for the calls of this process.

        Of the cell only the table of calls is kept up to date, with the calls of this process.
        """
        self._answered = True
        for live in [*self.cell.calls]:
            if live.record_id not in self._waiters:
                self.cell.calls.forget(live)
                for listener in self._listeners_of_all:
                    listener.call_dropped(live)
        self._followers.publish_all(ServerStopping())

    async def _fail_lost(self, record_ids: Sequence[str]) -> None:
        """Answer those of these clients whose calls the cell does not know, and withdraw the calls.

        It knows them once it has what this process has put so far.
        """
        with contextlib.suppress(UnavailableError):
            await self.order.applied(NOTHING)
        known = {live.record_id for live in self.cell.calls}
        for record_id in record_ids:
            if record_id in known or record_id not in self._waiters:
                continue
            waiter = self._waiters[record_id]
            self._forget(waiter)
            waiter.answer(UnavailableError("the call is lost", headers={"Retry-After": "1"}))
            waiter.on_message(Cancel(waiter.call_id, "failed", "the call is lost"))
            self.order.put(Cancel(waiter.call_id, "failed", "the call is lost"))
        self._check_empty()

    def awaits_grants(self) -> bool:
        """Return whether a client of this process may wait for an event of another one."""
        return bool(self._waiters) and self.cell.calls.waiting > 0

    def _changed(self, change: CallChange, now_s: float) -> None:
        """Notify the listeners, and the followers of the run, of a step of a call."""
        live = change.call
        waiter = self._waiters.get(live.record_id)
        listeners = self._listeners if waiter is not None else self._listeners_of_all
        match change.step:
            case "accepted":
                if waiter is not None and waiter.accepted:  # once more: a state lacked it
                    listeners = self._listeners_of_all
                for listener in listeners:
                    listener.call_accepted(live, now_s)
                if waiter is not None and not waiter.accepted:
                    waiter.accepted, waiter.traceparent = True, live.traceparent
                self._publish(live, "queued", "")
            case "granted":
                if waiter is not None:
                    waiter.call_id = live.call.call_id
                    self._granted[waiter.call_id] = waiter
                for listener in listeners:
                    listener.call_granted(live)
                self._publish(live, "running", "")
            case "requeued":
                for listener in listeners:
                    listener.call_requeued(live)
                self._publish(live, "queued", "")
            case "started":
                for listener in listeners:
                    listener.call_started(live, now_s)
            case "progressed":
                for listener in listeners:
                    listener.call_progressed(live, now_s)
            case "rejected":
                for listener in listeners:
                    listener.call_rejected(live, change.reason, now_s)
                self._left(live)
            case "dropped":
                for listener in listeners:
                    listener.call_dropped(live)
                self._publish(live, change.outcome, change.reason)
                self._left(live)
            case "ended":
                for listener in listeners:
                    listener.call_ended(live, change.outcome, now_s)
                self._publish(live, change.outcome, change.reason)
                self._left(live)

    def _left(self, live: CallState) -> None:
        """Forget the client of a call that has ended or was rejected."""
        waiter = self._waiters.get(live.record_id)
        if waiter is not None:
            self._forget(waiter)
            if waiter.worker_id and not waiter.turn.done():  # it has requested another grant
                waiter.answer(_stopped())
        self._check_empty()

    def _forget(self, waiter: _Waiter) -> None:
        del self._waiters[waiter.record_id]
        if self._granted.get(waiter.call_id) is waiter:
            del self._granted[waiter.call_id]

    def _check_empty(self) -> None:
        if self._draining and not self._waiters:
            self._no_calls.set()

    def _publish(self, live: CallState, state: str, error: str) -> None:
        """Publish the state of a call to the followers of its run."""
        run_id = live.call.interaction_id
        if run_id not in self._followers:
            return
        record = live.record("completed", now_s=self._clock(), ended_at=self._wall(), error=error)
        if state == "queued":  # the same event may have granted it
            record = replace(record, worker=None, queue_delay_s=None)
        self._followers.publish(run_id, CallEvent(state, record))

    # --- events that belong to no call ------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Pass an event to the dispatcher, from any thread. Errors are logged."""
        assert self._loop is not None, "control has not started"
        if self._on_loop():
            self._take(event)
        else:
            self._loop.call_soon_threadsafe(self._take, event)

    def observe(self, event: ev.Event) -> None:
        """Pass on what this process sees of a worker, from any thread, if it is to report it."""
        assert self._loop is not None, "control has not started"
        if self._on_loop():
            self._observe(event)
        else:
            self._loop.call_soon_threadsafe(self._observe, event)

    def _observe(self, event: ev.Event) -> None:
        try:
            self.order.observe(event)
        except (KeyError, ValueError) as error:
            logger.warning("%s was not applied: %s", type(event).__name__, error)

    def _take(self, event: CellEvent) -> None:
        try:
            self.order.put(event)
        except (KeyError, ValueError) as error:
            logger.warning("%s was not applied: %s", type(event).__name__, error)

    def use_prices(self, prices: PriceBook) -> None:
        """Price the calls that are submitted from now on; from any thread."""
        assert self._loop is not None, "control has not started"
        self._loop.call_soon_threadsafe(self._take, PricesChanged(prices))

    def contract_changed(self, event: ev.ContractChanged, *, reopened: bool) -> None:
        """Apply limits from now on, and read the spending of a reopened budget; not from the loop."""
        if reopened or event.quota.period is None:
            self.openings.supersede(event)
        try:
            taken_at = self._wait_applied(event)
        except (KeyError, ValueError) as error:
            logger.warning("%s was not applied: %s", type(event).__name__, error)
            taken_at = self._wall()
        if reopened:
            self.openings.open([(event, taken_at)])

    def _wait_applied(self, event: CellEvent) -> float:
        """Apply an event, from any thread; return the UTC time, or raise its error."""
        assert self._loop is not None, "control has not started"
        if self._on_loop():
            self.order.put(event)
            return self._wall()
        return asyncio.run_coroutine_threadsafe(self._applied_at(event), self._loop).result()

    async def _applied_at(self, event: CellEvent) -> float:
        await self.order.applied(event)
        return self._wall()

    def _on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def apply_throttling(self, system: str, parameters: Mapping[str, Any]) -> None:
        """Change the system or its parameters while calls run; from any thread, waits for it.

        Raises ValueError (or KeyError for a name) that states what is allowed, and changes nothing.
        """
        self._wait_applied(SystemChanged(system, parameters))

    # --- a call -----------------------------------------------------------------------------------

    async def submit(self, message: Submit, on_message: OnMessage) -> Grant | RejectCall:
        """Queue a call and wait for its grant.

        Cancelling the task withdraws the call. ``on_message`` is called from the event loop: with the
        call's place in its run before the answer, and if it must stop after its grant. A call whose
        client named no run joins the run that its clues name. Raises a FairServeError: 404, 409 or
        422 if the call does not fit its run (nothing is recorded then), 503 if it was not granted in
        time, the queue is full, control is draining, the call cannot be written to the journal, or
        another server may hold the database.
        """
        self._require_storage("call")
        turn = asyncio.get_running_loop().create_future()
        waiter = _Waiter(message.record_id, on_message, turn, call_id=message.call.call_id)
        self._waiters[message.record_id] = waiter
        try:
            await self.order.applied(message)
            if waiter.sequence is not None:  # it was accepted
                await self._journal.durable(waiter.sequence)
            return await waiter.turn
        except JournalUnavailableError as error:
            self.order.put(NotStored(message.call.call_id))
            raise _not_journaled(error, "call") from error
        except asyncio.CancelledError:
            self._withdraw(message.record_id, message.call.call_id)
            raise
        except BaseException:
            if waiter.sequence is None:
                self._waiters.pop(message.record_id, None)
            raise

    def _withdraw(self, record_id: str, call_id: str) -> None:
        """End a call whose client disconnected, if it has not ended; its id may be another call's."""
        if record_id in self._waiters:
            self.order.put(Cancel(call_id, "cancelled", "client disconnected"))

    def progress(self, message: Progress) -> bool:
        """Report the usage of a granted call; return false if its lease has expired."""
        if message.call_id not in self._granted:
            return False
        self.order.put(message)
        return True

    def moved(self, call_id: str, worker_id: str) -> bool:
        """Report that a granted call has started at another worker than that of its grant.

        Return false if the call has ended, or no such worker serves its model.
        """
        if call_id not in self._granted:
            return False
        try:
            self.order.put(ev.CallMoved(call_id, worker_id))
        except (KeyError, ValueError) as error:
            logger.warning("a call was served by a worker that is not its own: %s", error)
            return False
        return True

    async def release(self, message: Release) -> Grant | None:
        """End a granted call; called exactly once per grant.

        With ``retry_on_another_worker`` it requeues the call, waits and returns the new grant, or
        raises as ``submit`` does. Without, everything is done before it first suspends, so that a task
        that is being cancelled may still call it; it then waits, for a call that failed, until calls of
        other servers are after this end in a shared order. None: the call has ended.
        """
        waiter = self._granted.get(message.call_id)
        if waiter is None:
            return None  # its lease had ended, or control had stopped it
        if not message.retry_on_another_worker:
            self.order.put(message)
            if message.outcome == "failed":  # its client may repeat it at another server
                await self.order.kept()
            return None
        waiter.turn = asyncio.get_running_loop().create_future()
        self.order.put(message)
        try:
            granted = await waiter.turn
        except asyncio.CancelledError:
            self._withdraw(waiter.record_id, message.call_id)
            raise
        assert isinstance(granted, Grant), "a call that was admitted once is never rejected"
        return granted

    def cancel(self, message: Cancel) -> None:
        """Withdraw a queued call; a granted one ends with its release. Unknown ids are ignored."""
        self.order.put(message)

    @property
    def shared(self) -> bool:
        """True if other servers put calls into the same order."""
        return self.order.shared

    async def recorded(self) -> None:
        """Wait until the released calls reach the ledger even if this process is killed."""
        await self.order.kept()
        await self._journal.written()

    def _require_storage(self, what: str) -> None:
        """Raise UnavailableError if another server may hold the database, or the journal is full."""
        if self._draining and self.order.shared:
            raise _stopping()
        self._require_lease()
        try:
            self._journal.check()
        except JournalUnavailableError as error:
            raise _not_journaled(error, what) from error

    # --- runs -------------------------------------------------------------------------------------

    async def open_interaction(
        self,
        run_id: str,
        tenant: str,
        app: str,
        user: str,
        sink: str | None = None,
        *,
        declared: bool = False,
    ) -> RunView:
        """Open an empty run that the call ``sink`` completes. It survives a restart from then on.

        Raises ConflictError if it exists, and UnavailableError if nothing new is accepted.

        A ``declared`` run belongs to a program: it accepts only its calls, and ends when it is closed.
        """
        self._require_storage("interaction")
        await self.order.applied(ev.InteractionOpened(run_id, tenant, app, user, sink, declared))
        view = self.cell.runs.view(run_id)
        if view is None:
            assert self._answered, "it was opened"
            view = self.cell.runs.opened(run_id, tenant, app, user, self._wall())
        await self._journal.written()
        return view

    async def restore_interaction(self, run: RestoredRun, opened_at: float) -> None:
        """Continue a run that was open before a restart; one that was closing ends at once.

        Raises ConflictError if there is such a run, and UnavailableError if there are too many.
        """
        await self.order.applied(RunRestored(run, opened_at))

    async def close_interaction(self, run_id: str, *, cancel: bool, failed: bool = False) -> None:
        """End a run: complete once its calls have ended, or cancelled with all its calls.

        With ``failed`` it is aborted. Raises NotFoundError or ConflictError.
        """
        await self.order.applied(ev.InteractionClosed(run_id, cancel=cancel, failed=failed))
        await self._journal.written()

    def follow_run(self, run_id: str, on_event: OnRunEvent, sharer: str) -> Callable[[], None]:
        """Deliver the events of a run and its calls from now on; the result ends that.

        The run need not exist. ``sharer`` is the tenant that follows, or the operators. Raises
        RateLimitedError or UnavailableError if there are too many followers.
        """
        self._require_view()
        return self._followers.subscribe(run_id, on_event, sharer)

    # --- views ------------------------------------------------------------------------------------

    def subscribe(self, listener: CallListener, *, own: bool = False) -> None:
        """Notify a listener of the calls and runs from now on; before the first call.

        ``own``: only of calls that were submitted in this process, and of runs.
        """
        self._listeners.append(listener)
        if not own:
            self._listeners_of_all.append(listener)


def _stopping() -> UnavailableError:
    return UnavailableError("the server is stopping", headers={"Retry-After": "1"})


def _stopped() -> UnavailableError:
    return UnavailableError(
        "the call was stopped", code="call_stopped", headers={"Retry-After": "5"}
    )


def _not_journaled(error: JournalUnavailableError, what: str) -> UnavailableError:
    return UnavailableError(
        f"the {what} cannot be accepted: {error}",
        code="journal_unavailable",
        headers={"Retry-After": "5"},
    )
