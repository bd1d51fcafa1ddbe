"""Control as a task of this process: the dispatcher, driven by messages, time and the journal.

One event loop owns it; other threads pass their events and changes to that loop. ``lifecycle`` handles
the calls; this module handles the ticks of the clock, events that belong to no call (workers, settings,
the system itself), the runs, and the views.

Weakness: the state lives in this process; after a crash the open runs are restored from the ledger, and
the counters of fairness start at zero.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from fairserve.interactions.run_rules import Clue
from fairserve.interactions.tracking.run import RestoredRun
from fairserve.interactions.tracking.tracker import TrackerLimits
from fairserve.platform.base.clock import utc_s
from fairserve.platform.control.budgets import BudgetOpenings, SpentBefore
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.client_state import client_levels, client_state
from fairserve.platform.control.entitlement import entitlements
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.lifecycle import CallLifecycle, ControlOptions
from fairserve.platform.control.messages import (
    CallView,
    Cancel,
    Client,
    ClientState,
    ClusterView,
    Entitlements,
    Grant,
    LevelView,
    ModelView,
    OnCancel,
    OnRunEvent,
    Progress,
    RejectCall,
    Release,
    RunView,
    Submit,
    WorkerView,
)
from fairserve.platform.control.port import CallListener
from fairserve.platform.control.runs import LiveRuns
from fairserve.platform.control.translate import interaction_errors
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.dispatch.switch import switch_system
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

logger = logging.getLogger(__name__)

R = TypeVar("R")

BLOCK_TOKENS = 16
"""Block size of the prefixes that the router distinguishes, in tokens."""
VIEWED_AT_ONCE = 200
"""Live calls of a run that are read in one turn of the event loop: about 3 ms."""
TICK_S = 0.25


class ControlService:
    """The in-process :class:`~fairserve.platform.control.port.ControlPort`."""

    def __init__(
        self,
        system: SystemConfig,
        journal: Journal,
        options: ControlOptions = ControlOptions(),
        *,
        seed: int = 0,
        parameters: Mapping[str, Any] | None = None,
        prices: PriceBook | None = None,
        spent: SpentBefore = lambda contract, until: (),
        require_lease: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = utc_s,
    ) -> None:
        """``require_lease`` raises UnavailableError while another server may hold the database."""
        self._base = system
        self._parameters = dict(parameters or {})
        self._seed = seed
        self._dispatcher = Dispatcher(
            system.with_options(self._parameters),
            seed=seed,
            block_tokens=BLOCK_TOKENS,
            infer_parents=options.infer_parents,
            reopen_grace_s=options.reopen_grace_s,
            admission=options.admission,
            tracker_limits=TrackerLimits(
                tenant_share=options.tenant_share, user_share=options.user_share
            ),
            queue_bounds=options.queue_bounds,
        )
        self._journal = journal
        self._clock = clock
        self._wall = wall
        self._listeners: list[CallListener] = []
        self._runs = LiveRuns(self._listeners)
        self._lifecycle = CallLifecycle(
            self._dispatcher,
            journal,
            options,
            self._runs,
            self._listeners,
            prices=PriceBook() if prices is None else prices,
            require_lease=require_lease,
            clock=clock,
            wall=wall,
        )
        self.openings = BudgetOpenings(spent, self.post)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticker: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind to the running loop and start the ticks."""
        self._loop = asyncio.get_running_loop()
        self._ticker = self._loop.create_task(self._tick_until_closed(), name="control tick")

    async def drain(self, timeout_s: float) -> None:
        """Reject new calls, wait for the others, then end the remaining ones as failed."""
        await self._lifecycle.drain(timeout_s)

    async def close(self) -> None:
        """Stop the ticks."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)

    async def _tick_until_closed(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception:
                logger.exception("a tick failed")

    def tick(self) -> None:
        """Expire waits and leases, then pass the time to the dispatcher."""
        now_s = self._clock()
        self._lifecycle.end_overdue(now_s)
        self._lifecycle.apply(self._dispatcher.handle(ev.Tick(), now_s))

    # --- events that belong to no call ------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Pass an event to the dispatcher, from any thread. Errors are logged."""
        assert self._loop is not None, "control has not started"
        if self._on_loop():
            self._lifecycle.take(event)
        else:
            self._loop.call_soon_threadsafe(self._lifecycle.take, event)

    def use_prices(self, prices: PriceBook) -> None:
        """Price the calls that are submitted from now on; from any thread."""
        assert self._loop is not None, "control has not started"
        self._loop.call_soon_threadsafe(self._lifecycle.use_prices, prices)

    def contract_changed(self, event: ev.ContractChanged, *, reopened: bool) -> None:
        """Apply limits from now on, and read the spending of a reopened budget; not from the loop."""
        taken_at = self._on_loop_thread(lambda: self._take_at(event))
        if reopened:
            self.openings.open([(event, taken_at)])

    def _take_at(self, event: ev.Event) -> float:
        self._lifecycle.take(event)
        return self._wall()

    def _on_loop_thread(self, act: Callable[[], R]) -> R:
        """Call ``act`` on the loop, from any thread; return or raise its result."""
        assert self._loop is not None, "control has not started"
        if self._on_loop():
            return act()
        done: concurrent.futures.Future[R] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result()

    def _on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def apply_throttling(self, system: str, parameters: Mapping[str, Any]) -> None:
        """Change the system or its parameters while calls run; from any thread, waits for it.

        Raises ValueError (or KeyError for a name) that states what is allowed, and changes nothing.
        """
        assert self._loop is not None, "control has not started"
        self._on_loop_thread(lambda: self._apply_throttling(system, parameters))

    def _apply_throttling(self, system: str, parameters: Mapping[str, Any]) -> None:
        base = SYSTEMS[system]
        config = base.with_options(parameters)
        calls = [(live.call, live.worker_id, live.usage) for live in self._lifecycle.calls]
        switch_system(self._dispatcher, config, calls, self._seed, self._clock())
        self._base, self._parameters = base, dict(parameters)
        self._lifecycle.apply(self._dispatcher.handle(ev.Tick(), self._clock()))

    # --- a call -----------------------------------------------------------------------------------

    async def submit(self, message: Submit, on_cancel: OnCancel) -> Grant | RejectCall:
        """See the port."""
        return await self._lifecycle.submit(message, on_cancel)

    def progress(self, message: Progress) -> bool:
        """See the port."""
        return self._lifecycle.progress(message)

    def moved(self, call_id: str, worker_id: str) -> bool:
        """See the port."""
        return self._lifecycle.moved(call_id, worker_id)

    async def release(self, message: Release) -> Grant | None:
        """See the port."""
        return await self._lifecycle.release(message)

    def cancel(self, message: Cancel) -> None:
        """See the port."""
        self._lifecycle.cancel(message)

    async def recorded(self) -> None:
        """See the port."""
        await self._journal.written()

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
        """See the port."""
        self._lifecycle.require_storage("interaction")
        event = ev.InteractionOpened(run_id, tenant, app, user, sink, declared)
        self._handle_run(event, app)
        view = self._runs.opened(run_id, tenant, app, user, self._wall())
        self._lifecycle.save_run(run_id)
        await self._journal.written()
        return view

    async def restore_interaction(self, run: RestoredRun, opened_at: float) -> None:
        """See the port."""
        app = run.owner[1]
        with interaction_errors(None, app):
            commands = self._dispatcher.handle(ev.InteractionRestored(run), self._clock())
        self._runs.restored(run, opened_at, self._wall() - run.idle_age_s)
        self._lifecycle.apply(commands)

    async def close_interaction(self, run_id: str, *, cancel: bool, failed: bool = False) -> None:
        """See the port."""
        event = ev.InteractionClosed(run_id, cancel=cancel, failed=failed)
        self._handle_run(event, run_id.partition("/")[0])
        self._lifecycle.save_run(run_id)
        await self._journal.written()

    def _handle_run(self, event: ev.Event, app: str) -> None:
        with interaction_errors(None, app):
            commands = self._dispatcher.handle(event, self._clock())
        self._lifecycle.apply(commands)

    def run_of(self, owner: Client, clues: Sequence[Clue], answer: Sequence[int]) -> str | None:
        """See the port."""
        run, _ = self._dispatcher.tracker.joinable(owner, clues, answer, self._clock())
        return None if run is None else run.interaction_id

    def follow_run(self, run_id: str, on_event: OnRunEvent, sharer: str) -> Callable[[], None]:
        """See the port."""
        return self._lifecycle.followers.subscribe(run_id, on_event, sharer)

    async def interaction(self, run_id: str) -> RunView | None:
        """See the port."""
        return self._runs.view(run_id)

    async def runs(
        self, tenant: str | None, app: str | None, limit: int, *, user: str | None = None
    ) -> list[RunView]:
        """See the port."""
        return self._runs.latest(limit, tenant=tenant, app=app, user=user)

    async def interaction_calls(self, run_id: str) -> list[CallView]:
        """See the port."""
        run = self._dispatcher.tracker.get(run_id)
        views: list[CallView] = []
        for number, call_id in enumerate(() if run is None else tuple(run.live_calls)):
            if number % VIEWED_AT_ONCE == VIEWED_AT_ONCE - 1:
                await asyncio.sleep(0)  # let other calls proceed
            live = self._lifecycle.calls.get(call_id)
            if live is not None:
                views.append(self._call_view(live))
        return views

    def _call_view(self, live: CallState) -> CallView:
        record = live.record("completed", now_s=self._clock(), ended_at=self._wall())
        if live.worker_id is not None:
            return CallView("running", record)
        held = self._dispatcher.pool_of(live.call.pool).holds(live.call)
        return CallView("held" if held else "queued", record)

    # --- views ------------------------------------------------------------------------------------

    def limits_in_use(self, tenant: str, app: str, user: str) -> LimitsInUse:
        """See the port."""
        return self._dispatcher.limits_in_use((tenant, app, user), self._clock(), self._wall())

    def model_allowed(self, tenant: str, app: str, user: str, model: str) -> bool:
        """See the port."""
        return self._dispatcher.directory.model_allowed(tenant, app, user, model)

    def entitlements(self, clients: Collection[Client]) -> Entitlements:
        """See the port."""
        return entitlements(self._dispatcher, clients)

    def client_state(self, client: Client) -> ClientState:
        """See the port."""
        return client_state(self._dispatcher, client)

    def client_levels(self, client: Client) -> list[LevelView]:
        """See the port."""
        return client_levels(self._dispatcher, client)

    def client_calls(self, client: Client, limit: int) -> list[CallView]:
        """See the port."""
        owned = (live for live in self._lifecycle.calls if live.owner == client)
        return [self._call_view(live) for live in islice(owned, limit)]

    def subscribe(self, listener: CallListener) -> None:
        """See the port."""
        self._listeners.append(listener)

    async def cluster(self) -> ClusterView:
        """See the port."""
        dispatcher = self._dispatcher
        demand, capacity = dispatcher.load()
        return ClusterView(
            system=self._base.name,
            overloaded=dispatcher.overloaded,
            draining=self._lifecycle.draining,
            demand_tokens=demand,
            capacity_tokens=capacity,
            queued_calls=self._lifecycle.calls.waiting,
            running_calls=self._lifecycle.calls.granted,
            live_interactions=len(self._runs),
            workers=tuple(
                WorkerView(
                    worker.worker_id,
                    worker.draining,
                    worker.kv_capacity_tokens,
                    worker.demand_tokens,
                    worker.waiting_tokens,
                    worker.calls,
                    model,
                    worker.foreign_tokens,
                    0 if each.gate is None else each.gate.residents.held_tokens(worker.worker_id),
                )
                for model, each in dispatcher.pools.items()
                for worker in each.worker_table.workers.values()
            ),
            models=tuple(
                ModelView(
                    model,
                    each.overload.overloaded,
                    *each.load(),
                    len(each.feeder),
                    each.overload.watermarks.high,
                    each.overload.watermarks.low,
                    len(each.background_feed),
                    sum(one.background.calls for one in each.worker_table.workers.values()),
                    0 if each.gate is None else each.gate.held_calls,
                    0 if each.gate is None else len(each.gate.residents),
                    each.feed.demand_tokens,
                    each.expected_wait_s,
                )
                for model, each in dispatcher.pools.items()
            ),
            parameters=dict(self._parameters),
        )
