"""The dispatcher: every policy of one system composed into one state machine.

    arrival -> tracker -> throttle -> feeder queue -> [feed window] -> router -> worker

Events in, commands out (:mod:`fairserve.scheduling.events`); the time comes with each event, so the
live service and the simulator run this very code. ``snapshot`` plus the later events gives the same
state as never having stopped. An event that does not fit raises before anything has changed.

Cost per call, whole life: one hash pass over the prompt, a few prefix matches, one feeder selection;
nothing grows with the number of live interactions or of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairserve.interactions.call import NO_USAGE, Call, TokenUsage, client_path
from fairserve.interactions.tracker import RunEnd, Tracker
from fairserve.scheduling import events as ev
from fairserve.scheduling.base import Feeder, Router
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feed import Feed
from fairserve.scheduling.live_call import LiveCall
from fairserve.scheduling.locality import Locality
from fairserve.scheduling.pool import Pool, Worker
from fairserve.scheduling.registry import FEEDERS, ROUTERS
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.base import Arrival, Decision, LimitUse, ThrottlingPolicy
from fairserve.throttling.overload import OverloadDetector, Watermarks
from fairserve.throttling.registry import THROTTLES


class UnknownCallError(KeyError):
    """No such call is queued or running."""


class UnknownWorkerError(KeyError):
    """No such worker has joined."""


def _not_dispatched(call_id: str) -> UnknownCallError:
    return UnknownCallError(f"call {call_id!r} is not dispatched")


class Dispatcher:
    """One system at work. ``seed`` keys the prefix hashes: keep it secret in production."""

    def __init__(self, system: SystemConfig, *, seed: int = 0, block_tokens: int = 16) -> None:
        self.system = system
        self.directory = Directory()
        self.tracker = Tracker(immunity_factor=system.immunity_factor)
        self.throttle: ThrottlingPolicy = THROTTLES[system.throttle](**system.throttle_options)
        self.overload = OverloadDetector(Watermarks(system.high_watermark, system.low_watermark))
        self._live: dict[str, LiveCall] = {}
        locality = Locality(seed, block_tokens)
        self.compose(
            locality,
            Pool(system.feed_window, locality.workers, hits=system.hit_share is not None),
            FEEDERS[system.feeder](self.directory, locality, **system.feeder_options),
            ROUTERS[system.router](locality, **system.router_options),
        )
        self._handlers: dict[type, Callable[[Any, float], list[ev.Command]]] = {
            ev.AppChanged: self._on_app_changed,
            ev.UserChanged: self._on_user_changed,
            ev.CallArrived: self._on_call_arrived,
            ev.CallStarted: self._on_call_started,
            ev.TokensDecoded: self._on_tokens_decoded,
            ev.CallEnded: self._on_call_ended,
            ev.CallReturned: self._on_call_returned,
            ev.CancelRequested: self._on_cancel_requested,
            ev.InteractionOpened: self._on_interaction_opened,
            ev.InteractionClosed: self._on_interaction_closed,
            ev.WorkerJoined: self._on_worker_joined,
            ev.WorkerReported: self._on_worker_reported,
            ev.WorkerDraining: self._on_worker_draining,
            ev.WorkerLost: self._on_worker_lost,
            ev.WorkerCached: self._on_cache_report,
            ev.WorkerEvicted: self._on_cache_report,
            ev.WorkerCacheReset: self._on_cache_report,
            ev.Tick: self._on_tick,
        }

    def compose(self, locality: Locality, pool: Pool, feeder: Feeder, router: Router) -> None:
        """Go on with these parts, which know every call under way."""
        self.locality, self.pool = locality, pool
        self.feeder, self.router = feeder, router
        self.feed = Feed(locality, feeder, router, pool, self.system.hit_share)
        self.feed.restore(self._live.values())

    def handle(self, event: ev.Event, now_s: float) -> list[ev.Command]:
        """Take an event at ``now_s`` (monotonic seconds, not decreasing); returns what to do."""
        self.router.tick(now_s)
        return self._handlers[type(event)](event, now_s)

    def load(self) -> tuple[int, int]:
        """Demand and capacity in tokens, over the workers that take calls."""
        return self.pool.load(self.feed.demand_tokens)

    # --- settings ---------------------------------------------------------------------------------

    def _on_app_changed(self, event: ev.AppChanged, now_s: float) -> list[ev.Command]:
        self.directory.app_changed(event)
        return []

    def _on_user_changed(self, event: ev.UserChanged, now_s: float) -> list[ev.Command]:
        self.directory.user_changed(event)
        return []

    # --- a call arrives ---------------------------------------------------------------------------

    def _on_call_arrived(self, event: ev.CallArrived, now_s: float) -> list[ev.Command]:
        call = event.call
        if call.call_id in self._live:
            raise ValueError(f"call {call.call_id!r} is live already")
        profile = self.directory.profile(call.app)
        attachment = self.tracker.attach(call, profile)
        call.client = client_path(call, self.system.levels)
        call.stage = attachment.stage
        expected = max(1, round(profile.stage(call.stage).output_tokens))
        call.expected_output_tokens = call.samples * min(call.max_output_tokens, expected)

        self.overload.update(*self.load())
        arrival = self._arrival(call.tenant, call.app, call.user, under_way=attachment.immune)
        if self.directory.blocked(call.tenant, call.user):
            decision = Decision(admitted=False, reason="user_blocked", scope="user")
        else:
            decision = self.throttle.check(arrival, now_s)
        self.throttle.commit(arrival, decision, now_s)
        if not decision.admitted:
            mid_run = self.tracker.refuse(call, now_s)
            return [ev.Refuse(call.call_id, decision, mid_run)]

        self.tracker.accept(call, now_s)
        self.locality.register(call)
        live = self._live[call.call_id] = LiveCall(call)
        return self.feed.add(live)

    def _arrival(self, tenant: str, app: str, user: str, *, under_way: bool) -> Arrival:
        return Arrival(
            user=f"{tenant}/{user}",
            app=app,
            limits=self.directory.limits(app, tenant, user),
            overloaded=self.overload.overloaded,
            under_way=under_way,
        )

    def limit_use(self, tenant: str, app: str, user: str, now_s: float) -> LimitUse | None:
        """What a user has used of the limit that the throttle holds it to."""
        return self.throttle.use(self._arrival(tenant, app, user, under_way=False), now_s)

    # --- a call runs ------------------------------------------------------------------------------

    def _dispatched(self, call_id: str) -> LiveCall:
        live = self._live.get(call_id)
        if live is None or live.worker_id is None:
            raise _not_dispatched(call_id)
        return live

    def _worker_of(self, live: LiveCall) -> Worker | None:
        assert live.worker_id is not None
        return self.pool.get(live.worker_id, live.epoch)

    def _start(self, live: LiveCall) -> None:
        """It left its worker's queue: the window has room again, it holds what it computed."""
        if live.started:
            return
        live.started = True
        self.router.started(live.call.call_id)
        worker = self._worker_of(live)
        if worker is not None:
            waited = live.call.prompt_tokens + live.call.expected_output_tokens
            self.pool.add_waiting(worker, -waited, -live.hit_tokens)
        self._hold(live)

    def _hold(self, live: LiveCall) -> None:
        """Bring the demand of a running call up to the tokens that it holds."""
        held = live.call.prompt_tokens - live.cached_tokens + live.output_tokens
        more = held - live.demand_tokens
        if more:
            live.demand_tokens = held
            self._grow(live, more)

    def _on_call_started(self, event: ev.CallStarted, now_s: float) -> list[ev.Command]:
        live = self._dispatched(event.call_id)
        if event.cached_tokens is not None:
            live.cached_tokens = min(event.cached_tokens, live.call.prompt_tokens)
        self._start(live)
        self.feeder.charge(event.call_id, live.usage())
        return self.feed.pump()

    def _on_tokens_decoded(self, event: ev.TokensDecoded, now_s: float) -> list[ev.Command]:
        lives = []
        for call_id, _ in event.totals:  # the many events of the core: no call per entry here
            live = self._live.get(call_id)
            if live is None or live.worker_id is None:
                raise _not_dispatched(call_id)
            lives.append(live)
        charged = []
        at, grown = None, 0  # a call of the worker whose calls come now, and the tokens of these
        for live, entry in zip(lives, event.totals, strict=True):
            tokens = entry[1]
            more = tokens - live.output_tokens
            if not live.started:
                live.output_tokens = max(live.output_tokens, tokens)
                self._start(live)
                self.feeder.charge(entry[0], live.usage())
            elif more > 0:
                live.output_tokens = tokens
                live.demand_tokens += more
                if at is not None and (at.worker_id != live.worker_id or at.epoch != live.epoch):
                    self._grow(at, grown)
                    grown = 0
                at = live
                grown += more
                charged.append(entry)
        if at is not None:
            self._grow(at, grown)
            self.feeder.decoded(charged)
        return self.feed.pump()

    def _grow(self, live: LiveCall, tokens: int) -> None:
        """The calls of this one's worker hold so many more tokens."""
        worker = self._worker_of(live)
        if worker is not None:
            self.pool.add_demand(worker, tokens)

    # --- a call ends ------------------------------------------------------------------------------

    def _leave_worker(self, live: LiveCall, output_tokens: int, now_s: float) -> None:
        """Take a dispatched call off its worker."""
        self._start(live)
        worker = self._worker_of(live)
        if worker is not None:
            self.locality.left(live.call, worker.worker_id, now_s)
            self.pool.add_demand(worker, -live.demand_tokens)
            worker.calls -= 1
        worker_id = None if worker is None else worker.worker_id
        self.router.finished(live.call, worker_id, live.price, output_tokens)

    def _on_call_ended(self, event: ev.CallEnded, now_s: float) -> list[ev.Command]:
        live = self._dispatched(event.call_id)
        usage = event.usage
        self._leave_worker(live, usage.output_tokens, now_s)
        self.feeder.finish(event.call_id, usage)
        commands = self._finish(live.call, event.outcome, usage, now_s)
        return commands + self.feed.pump()

    def _finish(
        self, call: Call, outcome: ev.CallOutcome, usage: TokenUsage, now_s: float
    ) -> list[ev.Command]:
        """Forget a call and let its interaction know."""
        del self._live[call.call_id]
        self.locality.forget(call.call_id)
        tokens = usage.prompt_tokens + usage.output_tokens
        profile = self.directory.profile(call.app)
        end = self.tracker.finish(call, outcome, tokens, profile, now_s)
        return [] if end is None else [self._ended(end)]

    def _ended(self, end: RunEnd) -> RunEnd:
        self.feeder.interaction_ended(end.interaction_id)
        return end

    def _on_call_returned(self, event: ev.CallReturned, now_s: float) -> list[ev.Command]:
        live = self._dispatched(event.call_id)
        assert live.worker_id is not None
        self._leave_worker(live, 0, now_s)
        live.avoid.append(live.worker_id)
        live.worker_id = None
        live.cached_tokens = live.output_tokens = 0
        return self.feed.put_back(live)

    def _on_cancel_requested(self, event: ev.CancelRequested, now_s: float) -> list[ev.Command]:
        return self._cancel(event.call_id, event.outcome, now_s)

    def _cancel(self, call_id: str, outcome: ev.CallOutcome, now_s: float) -> list[ev.Command]:
        live = self._live.get(call_id)
        if live is None:
            raise UnknownCallError(f"call {call_id!r} is not live")
        commands: list[ev.Command] = [ev.CancelCall(call_id, live.worker_id, outcome)]
        if live.worker_id is None:  # else CallEnded follows when the worker has let go
            self.feed.remove(live)
            commands += self._finish(live.call, outcome, NO_USAGE, now_s)
        return commands

    # --- interactions -----------------------------------------------------------------------------

    def _on_interaction_opened(self, event: ev.InteractionOpened, now_s: float) -> list[ev.Command]:
        self.tracker.open(event.interaction_id, (event.tenant, event.app, event.user), now_s)
        return []

    def _on_interaction_closed(self, event: ev.InteractionClosed, now_s: float) -> list[ev.Command]:
        end, live_calls = self.tracker.close(event.interaction_id, cancel=event.cancel)
        commands: list[ev.Command] = [] if end is None else [self._ended(end)]
        if event.cancel:
            for call_id in live_calls:
                commands += self._cancel(call_id, "cancelled", now_s)
        return commands

    # --- workers ----------------------------------------------------------------------------------

    def _on_worker_joined(self, event: ev.WorkerJoined, now_s: float) -> list[ev.Command]:
        self.pool.join(event.worker_id, event.kv_capacity_tokens)
        self.locality.add_worker(event.worker_id, event.kv_capacity_tokens)
        self.router.add_worker(event.worker_id)
        return self.feed.pump()

    def _require_worker(self, worker_id: str) -> Worker:
        worker = self.pool.workers.get(worker_id)
        if worker is None:
            known = ", ".join(self.pool.workers) or "none"
            raise UnknownWorkerError(f"unknown worker {worker_id!r}; joined: {known}")
        return worker

    def _on_worker_reported(self, event: ev.WorkerReported, now_s: float) -> list[ev.Command]:
        self._require_worker(event.worker_id).last_report_s = now_s
        return []

    def _on_worker_draining(self, event: ev.WorkerDraining, now_s: float) -> list[ev.Command]:
        worker = self._require_worker(event.worker_id)
        if not worker.draining:
            self.pool.drain(worker)
            self.router.remove_worker(event.worker_id)
            self.locality.remove_worker(event.worker_id)
        return []

    def _on_worker_lost(self, event: ev.WorkerLost, now_s: float) -> list[ev.Command]:
        worker = self._require_worker(event.worker_id)
        self.pool.lose(worker)
        if not worker.draining:
            self.router.remove_worker(event.worker_id)
            self.locality.remove_worker(event.worker_id)
        return []

    def _on_cache_report(self, event: ev.CacheReport, now_s: float) -> list[ev.Command]:
        self.locality.reports.take(event)
        return []

    # --- time -------------------------------------------------------------------------------------

    def _on_tick(self, event: ev.Tick, now_s: float) -> list[ev.Command]:
        silence_s = self.system.worker_silence_s
        for worker in list(self.pool.workers.values()):
            if worker.last_report_s is not None and now_s - worker.last_report_s > silence_s:
                self._on_worker_lost(ev.WorkerLost(worker.worker_id), now_s)
        expired = self.tracker.expire(self.directory.profile, now_s)
        commands: list[ev.Command] = [self._ended(end) for end in expired]
        self.throttle.forget_idle(now_s)
        self.locality.reports.settle(now_s)
        self.overload.update(*self.load())
        return commands + self.feed.pump()

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """State as plain JSON values; ages, not times. Only between events."""
        self.router.tick(now_s)  # so that no time is lost between its last tick and the restore
        return {
            "directory": self.directory.snapshot(),
            "locality": self.locality.snapshot(now_s),
            "tracker": self.tracker.snapshot(now_s),
            "throttle": self.throttle.snapshot(now_s),
            "feeder": self.feeder.snapshot(),
            "router": self.router.snapshot(),
            "pool": self.pool.snapshot(now_s),
            "overloaded": self.overload.overloaded,
            "live": [live.to_plain() for live in self._live.values()],
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot of a dispatcher of the same system and seed."""
        lives = [LiveCall.from_plain(plain) for plain in state["live"]]
        self._live = {live.call.call_id: live for live in lives}
        calls = {call_id: live.call for call_id, live in self._live.items()}
        self.directory.restore(state["directory"])
        self.locality.restore(state["locality"], calls.values(), now_s)
        self.tracker.restore(state["tracker"], now_s)
        self.throttle.restore(state["throttle"], now_s)
        self.feeder.restore(state["feeder"], calls)
        self.router.restore(state["router"])
        self.router.tick(now_s)
        self.pool.restore(state["pool"], now_s)
        self.overload.overloaded = state["overloaded"]
        self.feed.restore(lives)
