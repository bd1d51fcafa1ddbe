"""Views of control: calls in progress, runs, clients and their limits, workers and load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from fairserve.interactions.call import Call
from fairserve.interactions.run_rules import Clue
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.client_state import client_levels, client_state
from fairserve.platform.control.entitlement import entitlements
from fairserve.platform.control.messages import (
    CallView,
    Client,
    ClientState,
    ClusterView,
    Entitlements,
    LevelView,
    ModelView,
    RunView,
    WorkerView,
)
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.scheduling.dispatch.model_pool import ModelPool
from fairserve.scheduling.dispatch.worker_table import Worker
from fairserve.throttling.quotas.contracts import ContractUse
from fairserve.throttling.quotas.quota import QuotaScope

VIEWED_AT_ONCE = 200
"""Live calls of a run that are read in one turn of the event loop: about 3 ms."""
MOST_SELECTED = 1000
"""Live runs among which those that wait for memory are selected."""


class ControlViews:
    """Views of a cell. They change nothing; on the event loop, but for ``entitlements``."""

    def __init__(self, cell: Cell, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        """``clock`` and ``wall`` return the cell's time and the UTC time, in seconds."""
        self.cell = cell
        """Read-only outside of control."""
        self._clock = clock
        self._wall = wall
        self._draining = False
        self._answered = False
        """True once another version decides, and answers for the calls of this process."""

    def run_of(self, owner: Client, clues: Sequence[Clue], answer: Sequence[int]) -> str | None:
        """Return the id of the run that a call's clues name now; its submission decides.

        ``answer`` are the keys of the last answer that the call may continue.
        """
        tracker = self.cell.dispatcher.tracker
        run, _ = tracker.joinable(owner, clues, answer, self._clock())
        return None if run is None else run.interaction_id

    async def interaction(self, run_id: str) -> RunView | None:
        """Return a run that is live, or ended so lately that the database may lack it; else None.

        This and what lists and follows runs raise UnavailableError while another version decides.
        """
        self._require_view()
        return self.cell.runs.view(run_id)

    async def runs(
        self,
        tenant: str | None,
        app: str | None,
        limit: int,
        *,
        user: str | None = None,
        held: bool | None = None,
    ) -> list[RunView]:
        """Return live runs, of a tenant, app and user if given, the latest opened first.

        ``held`` selects those that wait for memory, or the others, among the latest thousand.
        """
        self._require_view()
        most = limit if held is None else MOST_SELECTED
        found = self.cell.runs.latest(most, tenant=tenant, app=app, user=user)
        if held is None:
            return found
        waiting = self.held_runs(each.interaction_id for each in found)
        return [each for each in found if (each.interaction_id in waiting) == held][:limit]

    def held_runs(self, run_ids: Iterable[str]) -> frozenset[str]:
        """Return which of these runs wait for memory: a queued call of theirs does."""
        dispatcher = self.cell.dispatcher
        if not any(pool.gate is not None and pool.gate.full for pool in dispatcher.pools.values()):
            return frozenset()
        return frozenset(each for each in run_ids if self._is_held(each))

    def _is_held(self, run_id: str) -> bool:
        run = self.cell.dispatcher.tracker.get(run_id)
        of_run = () if run is None else islice(run.live_calls, VIEWED_AT_ONCE)
        calls = (self.cell.calls.get(call_id) for call_id in of_run)
        return any(
            call is not None
            and call.worker_id is None
            and self.cell.dispatcher.pool_of(call.call.pool).holds(call.call)
            for call in calls
        )

    async def interaction_calls(self, run_id: str) -> list[CallView]:
        """Return the queued and running calls of a run, in the order of their acceptance.

        A long list is read in portions: a call that ends in between may be missing.
        """
        self._require_view()
        run = self.cell.dispatcher.tracker.get(run_id)
        views: list[CallView] = []
        for number, call_id in enumerate(() if run is None else tuple(run.live_calls)):
            if number % VIEWED_AT_ONCE == VIEWED_AT_ONCE - 1:
                await asyncio.sleep(0)  # let other calls proceed
            live = self.cell.calls.get(call_id)
            if live is not None:
                views.append(self._call_view(live))
        return views

    def client_calls(self, client: Client, limit: int) -> list[CallView]:
        """Return a client's queued and running calls, the first accepted first. O(calls of all)."""
        owned = (live for live in self.cell.calls if live.owner == client)
        return [self._call_view(live) for live in islice(owned, limit)]

    def _call_view(self, live: CallState) -> CallView:
        record = live.record("completed", now_s=self._clock(), ended_at=self._wall())
        if live.worker_id is not None:
            return CallView("running", record)
        held = self.cell.dispatcher.pool_of(live.call.pool).holds(live.call)
        return CallView("held" if held else "queued", record)

    def _require_view(self) -> None:
        """Raise UnavailableError if the cell is not kept up to date here."""
        if self._answered:
            raise UnavailableError(
                "servers of a newer version show this; try again", headers={"Retry-After": "2"}
            )

    def limits_in_use(self, tenant: str, app: str, user: str) -> LimitsInUse:
        """Return the remaining quotas and overload limits for the user's next call."""
        return self.cell.dispatcher.limits_in_use((tenant, app, user), self._clock(), self._wall())

    def quota_in_use(self, scope: QuotaScope, owner: str, user: str = "") -> ContractUse:
        """Return the use of one quota; ``owner`` is the tenant, or the app of the scope ``app``."""
        holder = (scope, owner, user)
        return self.cell.dispatcher.quota_in_use(holder, self._clock(), self._wall())

    def model_allowed(self, tenant: str, app: str, user: str, model: str) -> bool:
        """Return true if the user's quotas allow calls that name this model."""
        return self.cell.dispatcher.directory.model_allowed(tenant, app, user, model)

    def priority_granted(self, tenant: str, app: str, user: str) -> bool:
        """Return true if the user's calls in the app may have the tier ``priority``."""
        return self.cell.dispatcher.directory.priority_weight(tenant, app, user) is not None

    def tier_weight(self, call: Call) -> float:
        """Return the factor of the call's tier on the service that its client is entitled to."""
        return self.cell.dispatcher.directory.tier_weight(call)

    def entitlements(self, clients: Collection[Client]) -> Entitlements:
        """Return what each of these clients is entitled to among them.

        From any thread, because it only reads settings: for many clients it takes tens of milliseconds.
        """
        return entitlements(self.cell.dispatcher, clients)

    def client_state(self, client: Client) -> ClientState:
        """Return the weights, limits and counter of a client."""
        return client_state(self.cell.dispatcher, client)

    def client_levels(self, client: Client) -> list[LevelView]:
        """Return the counters and credits of each level of a client's path, model by model."""
        return client_levels(self.cell.dispatcher, client)

    async def worker(self, worker_id: str) -> WorkerView | None:
        """Return the state of a worker; None if control does not have it. O(models)."""
        for model, pool in self.cell.dispatcher.pools.items():
            worker = pool.worker_table.workers.get(worker_id)
            if worker is not None:
                return _worker_view(model, pool, worker)
        return None

    async def cluster(self) -> ClusterView:
        """Return the state of workers, queues and load."""
        dispatcher = self.cell.dispatcher
        demand, capacity = dispatcher.load()
        return ClusterView(
            system=self.cell.system.name,
            overloaded=dispatcher.overloaded,
            draining=self._draining,
            demand_tokens=demand,
            capacity_tokens=capacity,
            queued_calls=self.cell.calls.waiting,
            running_calls=self.cell.calls.granted,
            live_interactions=len(self.cell.runs),
            workers=tuple(
                _worker_view(model, each, worker)
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
            parameters=dict(self.cell.parameters),
        )


def _worker_view(model: str, pool: ModelPool, worker: Worker) -> WorkerView:
    residents = None if pool.gate is None else pool.gate.residents
    return WorkerView(
        worker.worker_id,
        worker.draining,
        worker.kv_capacity_tokens,
        worker.demand_tokens,
        worker.waiting_tokens,
        worker.calls,
        model,
        worker.foreign_tokens,
        0 if residents is None else residents.held_tokens(worker.worker_id),
        worker.sequences + worker.background.sequences,
        worker.background.slots,
        pool.worker_table.window_tokens(worker),
        None if residents is None else residents.prompt_tokens(worker.worker_id),
    )
