"""Workers of one model and the queue in front of them: one of the dispatcher's pools.

Runs, limits and profiles belong to the dispatcher and are shared by all pools. A pool has its own
queue, router with deficits, believed caches, feed window and overload flag. A client's service in
one pool counts in the queues of the others (:meth:`~fairserve.scheduling.base.Feeder.share`).

Background calls have a queue of their own, with a second feeder of the same policy: clients share
what is left by the same weights, and background service costs no client its place among the others.
The router is common: background calls use the client's deficits at the workers. Background
calls that wait or run are no load to the overload detector.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairserve.interactions.call import Call, ClientPath
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.tracking.run import Attachment
from fairserve.scheduling import events as ev
from fairserve.scheduling.base import Feeder, Router, TimedRouter
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.dispatch.background_room import Room, largest
from fairserve.scheduling.dispatch.feed import Feed
from fairserve.scheduling.dispatch.queued_call import QueuedCall
from fairserve.scheduling.dispatch.whole_calls import WholeCalls
from fairserve.scheduling.dispatch.worker_table import Worker, WorkerTable
from fairserve.scheduling.errors import UnknownWorkerError
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.registry import FEEDERS, ROUTERS
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.scheduling.residents.gate import RunGate
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.overload.watermarks import OverloadDetector, Watermarks


def check_feeder(system: SystemConfig, feeder: Feeder) -> None:
    """Check that the feeder can hold runs, if the system has room for them. Raises ValueError."""
    if system.resident_share is not None and not isinstance(feeder, WscFeeder):
        raise ValueError("resident_share needs the feeder wsc")


class ModelPool:
    """State of one pool; only the dispatcher changes it. Raises what its policies raise."""

    def __init__(
        self, system: SystemConfig, directory: Directory, *, seed: int, block_tokens: int
    ) -> None:
        self.locality = Locality(seed, block_tokens)
        self.worker_table = WorkerTable(
            system.feed_window,
            self.locality.workers,
            background_window=system.background_window,
            background_calls=system.background_calls,
        )
        self.overload = OverloadDetector(Watermarks(system.high_watermark, system.low_watermark))
        self._system, self._directory = system, directory
        self.whole_calls = WholeCalls()
        self.background_feeder: Feeder = FEEDERS[system.feeder](
            directory, self.locality, **system.feeder_options
        )
        self.compose(
            FEEDERS[system.feeder](directory, self.locality, **system.feeder_options),
            ROUTERS[system.router](self.locality, **system.router_options),
        )

    def compose(self, feeder: Feeder, router: Router) -> None:
        """Set the policies of ordinary calls, before the first call."""
        self.feeder, self.router = feeder, router
        self.feed = Feed(self.locality, feeder, router, self.worker_table)
        self.gate = self.feed.gate = self._gate_of(feeder)
        self.background_feed = Feed(
            self.locality, self.background_feeder, router, self.worker_table, self.feed
        )

    def _gate_of(self, feeder: Feeder) -> RunGate | None:
        """Return the gate of the system; None if it has none."""
        share, hold_s = self._system.resident_share, self._system.hold_s
        check_feeder(self._system, feeder)
        if share is None or not isinstance(feeder, WscFeeder):
            return None
        candidates, table = self.feed.candidates, self.worker_table
        return RunGate(feeder, self._directory, self.locality, candidates, table, share, hold_s)

    def has_place(self, run_id: str, now_s: float) -> bool:
        """Return whether a run is in progress here, with a place in memory or without one by others."""
        return self.gate is None or self.gate.has_place(run_id, now_s)

    @property
    def feeders(self) -> tuple[Feeder, Feeder]:
        """Return the feeders of ordinary and of background calls."""
        return self.feeder, self.background_feeder

    def feeder_of(self, call: Call) -> Feeder:
        """Return the feeder of a call's class."""
        return self.background_feeder if call.background else self.feeder

    def feed_of(self, call: Call) -> Feed:
        """Return the feed of a call's class."""
        return self.background_feed if call.background else self.feed

    def pump(self, *, background: bool = True) -> list[ev.Command]:
        """Dispatch queued calls to workers; with ``background`` background calls, if no other waits."""
        commands = self.feed.pump()
        if background and len(self.background_feeder):
            commands += self.background_feed.pump()
        return commands

    def load(self) -> tuple[int, int]:
        """Return demand and capacity in tokens, over the workers that take calls.

        While work waits, the capacity is what it waits for
        (:mod:`fairserve.scheduling.dispatch.backlog`).
        """
        queued_tokens = self.feed.demand_tokens
        if not self.feed.backlog.waits:
            return self.worker_table.load(queued_tokens)
        used_tokens, capacity_tokens = self._use()
        return queued_tokens + used_tokens, self.feed.backlog.capacity(capacity_tokens, used_tokens)

    def _use(self) -> tuple[int, int]:
        """Return the tokens in use at the workers that take calls, and their capacity."""
        used_tokens, capacity_tokens = self.worker_table.load(0)
        if self.gate is not None and self.gate.full:
            used_tokens = max(used_tokens, self.gate.residents.tokens)
        return used_tokens, capacity_tokens

    def holds(self, call: Call) -> bool:
        """Return whether a queued call waits for memory of its run."""
        return self.gate is not None and not call.background and self.gate.holds(call)

    @property
    def expected_wait_s(self) -> float:
        """Return how long a call that is queued now is expected to wait."""
        return self.feed.backlog.expected_wait_s(self.feed.demand_tokens)

    def update_overload(self) -> bool:
        """Update the overload flag from the load, and return it."""
        return self.overload.update(*self.load())

    def rejection_context(
        self,
        call: Call,
        system: SystemConfig,
        profile: AppProfile,
        attachment: Attachment,
        *,
        asked: bool = True,
    ) -> RejectionContext:
        """Return the state for a rejection made now. O(1). ``asked``: immunity was checked."""
        demand, capacity = self.load()
        marks = self.overload.watermarks
        usual = system.immunity.usual(profile, self.worker_table.context_tokens)
        return RejectionContext(
            system=system.name,
            overloaded=self.overload.overloaded,
            demand_tokens=demand,
            capacity_tokens=capacity,
            high_watermark=marks.high,
            low_watermark=marks.low,
            queued_calls=len(self.feeder),
            call_tokens=call.most_tokens,
            run_calls=attachment.calls,
            run_tokens=attachment.tokens,
            expected_calls=usual.calls,
            expected_tokens=usual.tokens,
            immunity_factor=system.immunity_factor,
            under_way=attachment.under_way,
            immune=attachment.immune if asked else None,
        )

    def background_rooms(self, call: Call) -> list[Room]:
        """Return what background calls may hold at most at the workers that can serve a call.

        Empty if there are no such workers. A background call that fits none of the rooms waits until
        a larger worker joins.
        """
        rooms = self.background_feed.background_rooms(call.restriction)
        return largest(room.whole() for room in rooms)

    def tick(self, now_s: float) -> list[ev.Command]:
        """Update what depends on time, and dispatch the calls that can run now."""
        self.locality.reports.settle(now_s)
        self.update_overload()
        self.worker_table.tick(now_s)
        if self.gate is not None:
            workers = self.worker_table.serving
            self.gate.tick(workers, self.feed.not_for(workers), now_s)
        commands = self.pump()
        held = self.gate is not None and self.gate.full
        blocked = bool(self.feed) and (held or not self.worker_table.open.mask)
        self.feed.backlog.tick(now_s, blocked=blocked, used_tokens=self._use()[0])
        return commands

    # --- a call at its worker ---------------------------------------------------------------------

    def queue(self, live: QueuedCall, now_s: float) -> list[ev.Command]:
        """Queue an admitted call."""
        self.locality.register(live.call)
        if self.gate is not None and not live.call.background:
            self.gate.queue(live.call, now_s)
        return self.feed_of(live.call).add(live)

    def worker_of(self, live: QueuedCall) -> Worker | None:
        """Return the worker of a dispatched call if its epoch is still the same."""
        assert live.worker_id is not None
        worker = self.worker_table.workers.get(live.worker_id)
        return worker if worker is not None and worker.epoch == live.epoch else None

    def start(self, live: QueuedCall, now_s: float) -> None:
        """Start a call that left its worker's queue: window space is freed, its demand is known."""
        if live.started:
            return
        live.started = True
        self.router.started(live.call.call_id)
        self.whole_calls.start(live.call, now_s)
        worker = self.worker_of(live)
        if live.call.background:
            if worker is not None:
                worker.background.start()
            return
        if worker is not None:
            waited = live.call.prompt_tokens + live.call.expected_output_tokens
            self.worker_table.add_waiting(worker, -waited)
        output = live.output_tokens
        if not live.call.streamed:  # nothing more is known of its output before its end
            output = max(output, live.call.expected_output_tokens)
        held = live.call.prompt_tokens - live.cached_tokens + output
        more = held - live.demand_tokens
        if more:
            live.demand_tokens = held
            self.grow(live, more)

    def expect(self, live: QueuedCall, output_tokens: int) -> None:
        """Expect this output of a running call that reports none before its end."""
        self.feeder_of(live.call).expect(live.call.call_id, output_tokens)
        more = live.call.prompt_tokens - live.cached_tokens + output_tokens - live.demand_tokens
        if more > 0 and not live.call.background:
            live.demand_tokens += more
            self.grow(live, more)

    def grow(self, live: QueuedCall, tokens: int) -> None:
        """Add tokens held by the calls of this call's worker."""
        worker = self.worker_of(live)
        if worker is not None:
            self.worker_table.add_demand(worker, tokens)

    def decoded(self, entries: Iterable[tuple[QueuedCall, int]], now_s: float) -> None:
        """Charge dispatched calls for their output tokens so far."""
        charged: list[tuple[str, int]] = []
        background: list[tuple[str, int]] = []
        at, grown = None, 0  # a call of the current worker, and the new tokens of its calls
        for live, tokens in entries:
            more = tokens - live.output_tokens
            if not live.started:
                live.output_tokens = max(live.output_tokens, tokens)
                self.start(live, now_s)
                self.feeder_of(live.call).charge(live.call.call_id, live.usage())
            elif more > 0:
                live.output_tokens = tokens
                if live.call.background:
                    background.append((live.call.call_id, tokens))
                    continue
                live.demand_tokens += more
                if at is not None and (at.worker_id != live.worker_id or at.epoch != live.epoch):
                    self.grow(at, grown)
                    grown = 0
                at = live
                grown += more
                charged.append((live.call.call_id, tokens))
        if at is not None:
            self.grow(at, grown)
            self.feeder.decoded(charged)
        if background:
            self.background_feeder.decoded(background)

    def leave(self, live: QueuedCall, output_tokens: int, now_s: float) -> None:
        """Remove a dispatched call from its worker."""
        self.start(live, now_s)
        self.whole_calls.remove(live.call.call_id)
        if self.gate is not None and not live.call.background:
            self.gate.leave(live.call, now_s)
        worker = self.worker_of(live)
        if worker is not None:
            self.locality.left(live.call, worker.worker_id, now_s)
            if live.call.background:
                worker.background.remove(live.call.most_tokens, live.call.samples)
            else:
                self.worker_table.add_demand(worker, -live.demand_tokens, -live.call.samples)
            worker.calls -= 1
        worker_id = None if worker is None else worker.worker_id
        self.router.finished(live.call, worker_id, live.charge_factor, output_tokens)

    def move(self, live: QueuedCall, worker_id: str, now_s: float) -> list[ev.Command]:
        """Move a dispatched call to the worker of this pool at which it has started.

        The feeder has charged the call already; the router charges its prompt there, too. Raises
        UnknownWorkerError for a worker that takes no calls of this model, such as a draining one.
        """
        worker = self.worker_table.workers.get(worker_id)
        if worker is None or worker.draining:
            raise UnknownWorkerError(f"worker {worker_id!r} takes no calls of the call's model")
        if live.worker_id == worker_id and live.epoch == worker.epoch:
            return []
        self.leave(live, 0, now_s)
        live.cached_tokens, _ = self.locality.match(live.call, worker.bit)
        self.router.dispatched(live.call, worker_id, live.charge_factor)
        self.locality.placed(live.call, worker_id)
        live.worker_id, live.epoch = worker_id, worker.epoch
        live.demand_tokens = live.call.prompt_tokens - live.cached_tokens + live.output_tokens
        if live.call.background:
            worker.background.add(live.call.most_tokens, live.call.samples)
            worker.background.start()
        else:
            self.worker_table.add_demand(worker, live.demand_tokens, live.call.samples)
            if self.gate is not None:
                self.gate.dispatch(live.call, worker_id)
        self.whole_calls.start(live.call, now_s)
        worker.calls += 1
        return self.pump(background=live.call.background)

    def requeue(self, live: QueuedCall, client: ClientPath, now_s: float) -> list[ev.Command]:
        """Requeue a call whose worker failed before any output of it; other workers are preferred.

        It waits as a call of ``client``, which may differ from the client at dispatch.
        """
        assert live.worker_id is not None
        self.leave(live, 0, now_s)
        live.call.avoid |= {live.worker_id}
        live.worker_id = None
        live.call.client = client
        live.cached_tokens = live.output_tokens = 0
        if self.gate is not None and not live.call.background:
            self.gate.queue(live.call, now_s)
        return self.feed_of(live.call).requeue(live)

    # --- workers ----------------------------------------------------------------------------------

    def join(self, event: ev.WorkerJoined) -> list[ev.Command]:
        """Add a worker. Raises ValueError if it has joined already, or has no capacity."""
        self.worker_table.join(
            event.worker_id, event.kv_capacity_tokens, event.context_tokens, event.kind, event.slots
        )
        self.locality.add_worker(event.worker_id, event.kv_capacity_tokens)
        self.router.add_worker(event.worker_id)
        if self.gate is not None:
            self.gate.residents.join(event.worker_id, event.kv_capacity_tokens)
        return self.pump()

    def drain(self, worker: Worker) -> None:
        """Stop sending calls to a worker; its cache stays known."""
        if not worker.draining:
            self.worker_table.drain(worker)
            self.router.remove_worker(worker.worker_id)

    def undrain(self, worker: Worker) -> list[ev.Command]:
        """Send calls to a drained worker again."""
        if not worker.draining:
            return []
        self.worker_table.undrain(worker)
        self.router.add_worker(worker.worker_id, worker.calls)
        return self.pump()

    def lose(self, worker: Worker) -> None:
        """Remove a worker and its cache."""
        self.worker_table.lose(worker)
        if self.gate is not None:
            self.gate.residents.lose(worker.worker_id)
        if not worker.draining:
            self.router.remove_worker(worker.worker_id)
        self.locality.remove_worker(worker.worker_id)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        if isinstance(self.router, TimedRouter):  # includes the time since its last tick
            self.router.tick(now_s)
        return {
            "locality": self.locality.snapshot(now_s),
            "feeder": self.feeder.snapshot(),
            "background_feeder": self.background_feeder.snapshot(),
            "router": self.router.snapshot(),
            "worker_table": self.worker_table.snapshot(now_s),
            "overloaded": self.overload.overloaded,
            "backlog": self.feed.backlog.snapshot(now_s),
            "whole_calls": self.whole_calls.snapshot(now_s),
            "gate": None if self.gate is None else self.gate.snapshot(now_s),
        }

    def restore(self, state: dict[str, Any], calls: Iterable[Call], now_s: float) -> None:
        """Replace the state by an earlier snapshot, except the feed, which :meth:`resume` sets.

        ``calls`` are the live calls of this pool.
        """
        by_id = {call.call_id: call for call in calls}
        self.locality.restore(state["locality"], by_id.values(), now_s)
        self.feeder.restore(state["feeder"], by_id)
        self.background_feeder.restore(state["background_feeder"], by_id)
        self.router.restore(state["router"])
        if isinstance(self.router, TimedRouter):
            self.router.tick(now_s)
        self.worker_table.restore(state["worker_table"], now_s)
        self.overload.overloaded = state["overloaded"]
        self.feed.backlog.restore(state["backlog"], now_s)
        self.whole_calls.restore(state["whole_calls"], now_s)
        if self.gate is not None and state["gate"] is not None:
            self.gate.restore(state["gate"], by_id, now_s)
        elif self.gate is not None:
            for worker in self.worker_table.workers.values():
                self.gate.residents.join(worker.worker_id, worker.kv_capacity_tokens)

    def resume(self, lives: Iterable[QueuedCall]) -> None:
        """Continue with these calls, which feeders and router already contain."""
        own = list(lives)
        self.feed.restore(live for live in own if not live.call.background)
        self.background_feed.restore(live for live in own if live.call.background)
