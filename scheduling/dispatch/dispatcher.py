"""The dispatcher: all policies of one system composed into one state machine.

    arrival -> tracker -> admission -> feeder queue -> [feed window] -> router -> worker

Tracker, admission and directory are shared; queue, router and workers are those of the call's model
(:mod:`fairserve.scheduling.dispatch.model_pool`). It takes events and returns commands
(:mod:`fairserve.scheduling.events`). Each event carries its time, so the live service and
the simulator run the same code. A ``snapshot`` plus the later events gives the state of an
uninterrupted run. An invalid event raises before any state changes.

Cost per call, from arrival to end: one hash pass over the prompt, a few prefix matches, one feeder
selection. Nothing grows with the number of live interactions or workers; only the shared charges of
clients grow with the number of models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairserve.interactions.call import NO_USAGE, Call, ClientPath, TokenUsage, client_path
from fairserve.interactions.tracking.run import Attachment
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.interactions.tracking.tracker import Tracker, TrackerLimits
from fairserve.scheduling import events as ev
from fairserve.scheduling.base import Feeder, TimedRouter
from fairserve.scheduling.directory import Directory, Setting
from fairserve.scheduling.dispatch.admission import Admission, AdmissionOptions, LimitsInUse
from fairserve.scheduling.dispatch.membership import Membership
from fairserve.scheduling.dispatch.model_pool import ModelPool
from fairserve.scheduling.dispatch.queue_places import RETRY_S, QueueBounds
from fairserve.scheduling.dispatch.queued_call import QueuedCall
from fairserve.scheduling.errors import UnknownCallError
from fairserve.scheduling.fairness.cost import SliceWeights
from fairserve.scheduling.fairness.newcomers import newcomers_of
from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.base import Decision
from fairserve.throttling.quotas.contracts import ContractUse, Holder
from fairserve.throttling.registry import THROTTLES


def _not_dispatched(call_id: str) -> UnknownCallError:
    return UnknownCallError(f"call {call_id!r} is not dispatched")


class Dispatcher:
    """State machine of one system. ``seed`` keys the prefix hashes: keep it secret in production.

    ``infer_parents`` and ``reopen_grace_s`` are passed to the tracker.
    """

    def __init__(
        self,
        system: SystemConfig,
        *,
        seed: int = 0,
        block_tokens: int = 16,
        infer_parents: bool = True,
        reopen_grace_s: float = 600.0,
        admission: AdmissionOptions = AdmissionOptions(),
        tracker_limits: TrackerLimits = TrackerLimits(),
        queue_bounds: QueueBounds | None = None,
    ) -> None:
        """Without ``queue_bounds`` any number of calls may be queued."""
        self.system = system
        self.directory = Directory()
        self.tracker = Tracker(
            tracker_limits,
            immunity=system.immunity,
            infer=infer_parents,
            reopen_grace_s=reopen_grace_s,
        )
        throttle = THROTTLES[system.throttle](**system.throttle_options)
        self.admission = Admission(self.directory, throttle, admission)
        self.newcomers = newcomers_of(system, self.directory)
        self._queue_bounds = queue_bounds
        self._live: dict[str, QueuedCall] = {}
        self._block_tokens = block_tokens
        self._seed = seed
        self.pools: dict[str, ModelPool] = {}
        """Pools by model, in the order of first use; read-only."""
        self.first = self.new_pool()
        """Pool of the first model that is used. It exists from the start: building it validates the
        policies' options."""
        self._timed: list[TimedRouter] = []
        """Routers of the pools whose decisions depend on time."""
        self._feeders: list[Feeder] = list(self.first.feeders)
        """Feeders of all models, or of the initial pool if none is in use."""
        self._membership = Membership(self.pool_of)
        self._handlers: dict[type, Callable[[Any, float], list[ev.Command]]] = {
            ev.AppChanged: self._on_setting,
            ev.TenantChanged: self._on_tenant_changed,
            ev.UserChanged: self._on_setting,
            ev.ContractChanged: self._on_setting,
            ev.BudgetSpent: self._on_setting,
            ev.CallArrived: self._on_call_arrived,
            ev.CallStarted: self._on_call_started,
            ev.TokensDecoded: self._on_tokens_decoded,
            ev.CallEnded: self._on_call_ended,
            ev.CallReturned: self._on_call_returned,
            ev.CallMoved: self._on_call_moved,
            ev.CancelRequested: self._on_cancel_requested,
            ev.InteractionOpened: self._on_interaction_opened,
            ev.InteractionRestored: self._on_interaction_restored,
            ev.InteractionClosed: self._on_interaction_closed,
            ev.UserStopped: self._on_user_stopped,
            ev.Tick: self._on_tick,
            **self._membership.handlers,
        }

    # --- models -----------------------------------------------------------------------------------

    def new_pool(self) -> ModelPool:
        """Return a new pool without workers, not yet in ``pools``."""
        return ModelPool(
            self.system, self.directory, seed=self._seed, block_tokens=self._block_tokens
        )

    def pool_of(self, model: str) -> ModelPool:
        """Return the pool of a model, created on first use."""
        found = self.pools.get(model)
        if found is None:
            found = self.new_pool() if self.pools else self.first
            self.compose({**self.pools, model: found})
        return found

    def compose(self, pools: dict[str, ModelPool]) -> None:
        """Replace the pools by these, which contain every call in progress and every worker."""
        self.pools = pools
        self.first = next(iter(pools.values()), self.first)
        used = [*pools.values()]
        self._timed = [each.router for each in used if isinstance(each.router, TimedRouter)]
        self._feeders = [feeder for each in used or [self.first] for feeder in each.feeders]
        self._membership.compose(pools.values())
        for model, each in pools.items():
            each.resume(live for live in self._live.values() if live.call.pool == model)
        ordinary = [each.feeder for each in pools.values()]
        background = [each.background_feeder for each in pools.values()]
        for feeders in (ordinary, background):
            for feeder in feeders:
                feeder.share([other for other in feeders if other is not feeder])

    # --- the interface ----------------------------------------------------------------------------

    def handle(self, event: ev.Event, now_s: float) -> list[ev.Command]:
        """Handle an event at ``now_s`` (monotonic seconds, not decreasing); return the commands."""
        for router in self._timed:
            router.tick(now_s)
        return self._handlers[type(event)](event, now_s)

    def queued(self, model: str, *of: str, background: bool = False) -> int:
        """Return the number of queued calls of a model: all, of a tenant, its app, or the app's user.

        ``background`` selects background calls, else only the others count.
        """
        pool = self.pools.get(model)
        if pool is None:
            return 0
        return (pool.background_feed if background else pool.feed).places.count(*of)

    def call(self, call_id: str) -> Call:
        """Return a call in progress. Raises KeyError for another id."""
        return self._live[call_id].call

    def is_at_worker(self, call_id: str) -> bool:
        """Return whether a call in progress is dispatched to a worker that has not left since."""
        live = self._live[call_id]
        return live.worker_id is not None and self.pools[live.call.pool].worker_of(live) is not None

    def block_keys(self, call: Call) -> BlockKeys:
        """Return the block keys of the prompt of a call in progress."""
        return self.pools[call.pool].locality.keys(call.call_id)

    @property
    def overloaded(self) -> bool:
        """Return whether any model is overloaded."""
        return any(each.overload.overloaded for each in self.pools.values())

    def load(self) -> tuple[int, int]:
        """Return demand and capacity in tokens of all models, over the workers that take calls."""
        loads = [each.load() for each in self.pools.values()]
        return sum(demand for demand, _ in loads), sum(capacity for _, capacity in loads)

    # --- settings ---------------------------------------------------------------------------------

    def _on_setting(self, event: Setting | ev.BudgetSpent, now_s: float) -> list[ev.Command]:
        self.admission.take(event)
        return []

    def levels(self, tenant: str) -> str:
        """Return the levels of a tenant's clients: its own, or the system's."""
        return self.directory.levels(tenant) or self.system.levels

    def path(self, call: Call, now_s: float) -> ClientPath:
        """Return the client of a call if it were queued now."""
        own = client_path(call, self.levels(call.tenant))
        return own if self.newcomers is None else self.newcomers.client_of(call, own, now_s)

    def _on_tenant_changed(self, event: ev.TenantChanged, now_s: float) -> list[ev.Command]:
        """Apply a tenant's weight and levels; queued calls move to the paths of its levels.

        Dispatched calls keep the path to which they are charged. O(calls in progress).
        """
        self.admission.take(event)
        moved: dict[Feeder, dict[str, ClientPath]] = {}
        for live in self._live.values():
            if live.worker_id is None and live.call.tenant == event.tenant:
                path = self.path(live.call, now_s)
                if path != live.call.client:
                    feeder = self.pools[live.call.pool].feeder_of(live.call)
                    moved.setdefault(feeder, {})[live.call.call_id] = path
        for feeder, paths in moved.items():
            feeder.move(paths)
        return []

    # --- a call arrives ---------------------------------------------------------------------------

    def _on_call_arrived(self, event: ev.CallArrived, now_s: float) -> list[ev.Command]:
        call = event.call
        if call.call_id in self._live:
            raise ValueError(f"call {call.call_id!r} is live already")
        profile = self.directory.profile(call.app)
        pool = self.pool_of(call.pool)
        context_tokens = pool.worker_table.context_tokens
        attachment = self.tracker.attach(call, profile, now_s, context_tokens)
        call.client = self.path(call, now_s)
        call.stage = attachment.stage
        # A recorded arrival is replayed with the object that the first dispatcher has changed.
        call.avoid, call.size = frozenset(), 0
        gated = pool.gate is not None and attachment.immune
        call.run_depth = attachment.stage - 1 if gated else 0
        call.remaining_calls = profile.remaining_calls(attachment.calls)
        expected = call.samples * call.declared_output_tokens or round(
            profile.expected_output(call.stage, call.agent)
        )
        most = call.samples * call.max_output_tokens
        call.expected_output_tokens = min(most, max(call.samples, expected))

        under_way, wait_s = attachment.under_way, pool.expected_wait_s
        full = None
        if self._queue_bounds is not None:
            full = pool.feed_of(call).places.rejection(
                call,
                self._queue_bounds,
                under_way=under_way,
                retry_after_s=max(RETRY_S, wait_s),
            )
        if full is not None and full.displaced in self._live:
            displaced = self._live[full.displaced].call
            if (
                displaced.interaction_id == call.interaction_id
            ):  # no call rejects one of its own run
                full = full._replace(displaced=None)
        if full is not None and full.displaced is None:
            self.tracker.reject(call, now_s)
            state = pool.rejection_context(call, self.system, profile, attachment, asked=False)
            return [ev.Refuse(call.call_id, full.decision, under_way, state)]
        immune = attachment.immune and self._has_place(call, now_s)
        decision = self.admission.decide(
            event,
            overloaded=pool.update_overload(),
            under_way=attachment.immune,
            immune=immune,
            expected_wait_s=wait_s,
            now_s=now_s,
        )
        if not decision.admitted:
            mid_run = self.tracker.reject(call, now_s)
            attachment = attachment._replace(immune=immune)
            state = pool.rejection_context(call, self.system, profile, attachment)
            return [ev.Refuse(call.call_id, decision, mid_run, state)]

        made_room: list[ev.Command] = []
        if full is not None and full.displaced is not None:
            made_room += self._displace(self._live[full.displaced], full.decision, now_s)
        reopened, ended = self.tracker.accept(call, attachment, now_s)
        if ended is not None:
            made_room.append(self._ended(ended))
        if reopened and pool.gate is None:  # else it needs a place again
            for feeder in self._feeders:
                feeder.begun_elsewhere(call.interaction_id)
        call.parents = self.tracker.parent_ids(call, attachment)
        live = self._live[call.call_id] = QueuedCall(call, under_way=under_way)
        return pool.queue(live, now_s) + made_room

    def _has_place(self, call: Call, now_s: float) -> bool:
        """Return whether the run of a call may hold memory for any model."""
        return any(each.has_place(call.interaction_id, now_s) for each in self.pools.values())

    def _displace(self, live: QueuedCall, decision: Decision, now_s: float) -> list[ev.Command]:
        """Reject a queued call whose place goes to an arrival; its id may be used again."""
        call, pool = live.call, self.pools[live.call.pool]
        profile = self.directory.profile(call.app)
        pool.feed_of(call).remove(live)
        pool.locality.forget(call.call_id)
        del self._live[call.call_id]
        self.admission.ended(call, "refused", NO_USAGE)
        run = self.tracker.get(call.interaction_id)
        assert run is not None, "the run of a live call is live"
        calls, tokens = len(run) - 1, run.tokens
        end = self.tracker.withdraw(call, profile, now_s)
        place = Attachment(call.stage, calls > 0, immune=False, calls=calls, tokens=tokens)
        state = pool.rejection_context(call, self.system, profile, place, asked=False)
        commands: list[ev.Command] = [ev.Refuse(call.call_id, decision, calls > 0, state)]
        return commands if end is None else [*commands, self._ended(end)]

    def limits_in_use(self, owner: tuple[str, str, str], now_s: float, at: float) -> LimitsInUse:
        """Return the remaining limits for the next call of ``owner``: tenant, app and user."""
        return self.admission.use(owner, overloaded=self.overloaded, now_s=now_s, at=at)

    def quota_in_use(self, holder: Holder, now_s: float, at: float) -> ContractUse:
        """Return the use of the quota of one holder."""
        return self.admission.quota_use(holder, now_s=now_s, at=at)

    # --- a call runs ------------------------------------------------------------------------------

    def _dispatched(self, call_id: str) -> QueuedCall:
        live = self._live.get(call_id)
        if live is None or live.worker_id is None:
            raise _not_dispatched(call_id)
        return live

    def _on_call_started(self, event: ev.CallStarted, now_s: float) -> list[ev.Command]:
        live = self._dispatched(event.call_id)
        if event.cached_tokens is not None:
            live.cached_tokens = min(event.cached_tokens, live.call.prompt_tokens)
        pool = self.pools[live.call.pool]
        pool.start(live, now_s)
        pool.feeder_of(live.call).charge(event.call_id, live.usage())
        return pool.pump(background=live.call.background)

    def _on_tokens_decoded(self, event: ev.TokensDecoded, now_s: float) -> list[ev.Command]:
        by_model: dict[str, list[tuple[QueuedCall, int]]] = {}
        model, entries, lives = None, [], self._live
        for call_id, tokens in event.totals:  # hot loop: no function call per entry
            live = lives.get(call_id)
            if live is None or live.worker_id is None:
                raise _not_dispatched(call_id)
            if live.call.pool != model:
                model = live.call.pool
                entries = by_model.setdefault(model, [])
            entries.append((live, tokens))
        commands: list[ev.Command] = []
        for model, entries in by_model.items():
            pool = self.pools[model]
            pool.decoded(entries, now_s)
            commands += pool.pump(background=False)
        return commands

    # --- a call ends ------------------------------------------------------------------------------

    def _on_call_ended(self, event: ev.CallEnded, now_s: float) -> list[ev.Command]:
        live = self._dispatched(event.call_id)
        pool, usage = self.pools[live.call.pool], event.usage
        if event.outcome == "completed":
            pool.whole_calls.completed(event.call_id, usage.output_tokens, now_s)
        pool.leave(live, usage.output_tokens, now_s)
        charged = pool.feeder_of(live.call).finish(event.call_id, usage)
        if self.newcomers is not None:
            self.newcomers.ended(live.call, self._slices(live.call, usage, charged), now_s)
        self.admission.ended(live.call, event.outcome, usage, charged=event.charged)
        commands = self._finish(
            live.call, event.outcome, usage, now_s, event.continuation_keys, event.requested_tools
        )
        return commands + pool.pump(background=live.call.background)

    def _slices(self, call: Call, usage: TokenUsage, charged: float | None) -> float:
        """Return the cost of a call in typical calls, independent of the feeder's unit."""
        if charged is not None:
            return charged
        weights = SliceWeights()
        return weights.slice(usage) / weights.typical_call(
            self.directory.profile(call.app), call.stage
        )

    def _finish(
        self,
        call: Call,
        outcome: ev.CallOutcome,
        usage: TokenUsage,
        now_s: float,
        continuation_keys: tuple[int, ...] = (),
        requested_tools: bool = False,
    ) -> list[ev.Command]:
        """Forget a call and end it in its interaction."""
        del self._live[call.call_id]
        self.pools[call.pool].locality.forget(call.call_id)
        tokens = usage.prompt_tokens + usage.output_tokens
        profile = self.directory.profile(call.app)
        end = self.tracker.finish(
            call,
            outcome,
            tokens,
            profile,
            now_s,
            continuation_keys=continuation_keys,
            requested_tools=requested_tools,
        )
        return [] if end is None else [self._ended(end)]

    def _ended(self, end: RunEnd) -> RunEnd:
        for feeder in self._feeders:
            feeder.interaction_ended(end.interaction_id)
        for pool in self.pools.values():
            if pool.gate is not None:
                pool.gate.residents.end(end.interaction_id)
        return end

    def _on_call_returned(self, event: ev.CallReturned, now_s: float) -> list[ev.Command]:
        live = self._dispatched(event.call_id)
        return self.pools[live.call.pool].requeue(live, self.path(live.call, now_s), now_s)

    def _on_call_moved(self, event: ev.CallMoved, now_s: float) -> list[ev.Command]:
        live = self._dispatched(event.call_id)
        return self.pools[live.call.pool].move(live, event.worker_id, now_s)

    def _on_cancel_requested(self, event: ev.CancelRequested, now_s: float) -> list[ev.Command]:
        return self._cancel(event.call_id, event.outcome, now_s)

    def _cancel(self, call_id: str, outcome: ev.CallOutcome, now_s: float) -> list[ev.Command]:
        live = self._live.get(call_id)
        if live is None:
            raise UnknownCallError(f"call {call_id!r} is not live")
        commands: list[ev.Command] = [ev.CancelCall(call_id, live.worker_id, outcome)]
        if live.worker_id is None:  # otherwise CallEnded follows from the worker
            self.pools[live.call.pool].feed_of(live.call).remove(live)
            self.admission.ended(live.call, outcome, NO_USAGE)
            commands += self._finish(live.call, outcome, NO_USAGE, now_s)
        return commands

    # --- interactions -----------------------------------------------------------------------------

    def _on_interaction_opened(self, event: ev.InteractionOpened, now_s: float) -> list[ev.Command]:
        owner = (event.tenant, event.app, event.user)
        self.admission.open(owner, now_s)
        ended = self.tracker.open(
            event.interaction_id, owner, now_s, event.sink, declared=event.declared
        )
        return [] if ended is None else [self._ended(ended)]

    def _on_interaction_restored(
        self, event: ev.InteractionRestored, now_s: float
    ) -> list[ev.Command]:
        end = self.tracker.restore_run(event.run, now_s)
        if end is not None:
            return [self._ended(end)]
        if event.run.calls:
            for feeder in self._feeders:
                feeder.begun_elsewhere(event.run.interaction_id)
        return []

    def _on_interaction_closed(self, event: ev.InteractionClosed, now_s: float) -> list[ev.Command]:
        end, live_calls = self.tracker.close(
            event.interaction_id, cancel=event.cancel, failed=event.failed
        )
        commands: list[ev.Command] = [] if end is None else [self._ended(end)]
        if event.cancel:
            for call_id in live_calls:
                commands += self._cancel(call_id, "cancelled", now_s)
        for pool in self.pools.values():
            if pool.gate is not None:  # the run may have left room for another
                commands += pool.pump(background=False)
        return commands

    def _on_user_stopped(self, event: ev.UserStopped, now_s: float) -> list[ev.Command]:
        """Cancel calls of a user, and its runs. O(calls and runs of all)."""
        user, commands = (event.tenant, event.user), list[ev.Command]()
        queued = [
            call_id
            for call_id, live in self._live.items()
            if live.worker_id is None and (live.call.tenant, live.call.user) == user
        ]
        for call_id in queued:  # first, or the end of a run would grant them
            commands += self._cancel(call_id, "cancelled", now_s)
        if event.running:
            for run in self.tracker.runs_of(*user):
                closed = ev.InteractionClosed(run.interaction_id, cancel=True)
                commands += self._on_interaction_closed(closed, now_s)
        return commands

    # --- time -------------------------------------------------------------------------------------

    def _on_tick(self, event: ev.Tick, now_s: float) -> list[ev.Command]:
        self._membership.lose_silent(self.system.worker_silence_s, now_s)
        expired = self.tracker.expire(self.directory.profile, now_s)
        commands: list[ev.Command] = [self._ended(end) for end in expired]
        self.admission.forget_idle(now_s)
        for pool in self.pools.values():
            for call_id, output_tokens in pool.whole_calls.overdue(now_s):
                pool.expect(self._live[call_id], output_tokens)
            commands += pool.tick(now_s)
        return commands

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times. Call it between events only."""
        return {
            "directory": self.directory.snapshot(),
            "tracker": self.tracker.snapshot(now_s),
            "admission": self.admission.snapshot(now_s),
            "pools": {model: each.snapshot(now_s) for model, each in self.pools.items()},
            "live": [live.to_plain() for live in self._live.values()],
            "newcomers": None if self.newcomers is None else self.newcomers.snapshot(now_s),
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot of a dispatcher of the same system and seed."""
        lives = [QueuedCall.from_plain(plain) for plain in state["live"]]
        self._live = {live.call.call_id: live for live in lives}
        self.directory.restore(state["directory"])
        self.tracker.restore(state["tracker"], now_s)
        self.admission.restore(state["admission"], now_s)
        if self.newcomers is not None:
            self.newcomers.restore(state["newcomers"], now_s)
        pools: dict[str, ModelPool] = {}
        for model, plain in state["pools"].items():
            unnamed = self.first if not (self.pools or pools) else self.new_pool()
            pools[model] = pool = self.pools.get(model, unnamed)
            own = [live.call for live in lives if live.call.pool == model]
            pool.restore(plain, own, now_s)
        self.compose(pools)
