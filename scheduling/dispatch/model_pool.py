"""Workers of one model and the queue in front of them: one of the dispatcher's pools.

Runs, limits and profiles belong to the dispatcher and are shared by all pools. A pool has its own
queue, router with deficits, believed caches, feed window and overload flag. A client's service in
one pool counts in the queues of the others (:meth:`~fairserve.scheduling.base.Feeder.share`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairserve.interactions.call import Call, ClientPath
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.tracking.run import Attachment
from fairserve.scheduling import events as ev
from fairserve.scheduling.base import Feeder, Router
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.dispatch.feed import Feed
from fairserve.scheduling.dispatch.queued_call import QueuedCall
from fairserve.scheduling.dispatch.worker_table import Worker, WorkerTable
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.registry import FEEDERS, ROUTERS
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.overload.watermarks import OverloadDetector, Watermarks


class ModelPool:
    """State of one pool; only the dispatcher changes it. Raises what its policies raise."""

    def __init__(
        self, system: SystemConfig, directory: Directory, *, seed: int, block_tokens: int
    ) -> None:
        self.locality = Locality(seed, block_tokens)
        self.worker_table = WorkerTable(
            system.feed_window, self.locality.workers, hits=system.hit_share is not None
        )
        self.overload = OverloadDetector(Watermarks(system.high_watermark, system.low_watermark))
        self._hit_share = system.hit_share
        self.compose(
            FEEDERS[system.feeder](directory, self.locality, **system.feeder_options),
            ROUTERS[system.router](self.locality, **system.router_options),
        )

    def compose(self, feeder: Feeder, router: Router) -> None:
        """Set the policies, before the first call."""
        self.feeder, self.router = feeder, router
        self.feed = Feed(self.locality, feeder, router, self.worker_table, self._hit_share)

    def load(self) -> tuple[int, int]:
        """Return demand and capacity in tokens, over the workers that take calls."""
        return self.worker_table.load(self.feed.demand_tokens)

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
            call_tokens=call.prompt_tokens + call.samples * call.max_output_tokens,
            run_calls=attachment.calls,
            run_tokens=attachment.tokens,
            expected_calls=usual.calls,
            expected_tokens=usual.tokens,
            immunity_factor=system.immunity_factor,
            under_way=attachment.under_way,
            immune=attachment.immune if asked else None,
        )

    # --- a call at its worker ---------------------------------------------------------------------

    def queue(self, live: QueuedCall) -> list[ev.Command]:
        """Queue an admitted call."""
        self.locality.register(live.call)
        return self.feed.add(live)

    def worker_of(self, live: QueuedCall) -> Worker | None:
        """Return the worker of a dispatched call if its epoch is still the same."""
        assert live.worker_id is not None
        return self.worker_table.get(live.worker_id, live.epoch)

    def start(self, live: QueuedCall) -> None:
        """Start a call that left its worker's queue: window space is freed, its demand is known."""
        if live.started:
            return
        live.started = True
        self.router.started(live.call.call_id)
        worker = self.worker_of(live)
        if worker is not None:
            waited = live.call.prompt_tokens + live.call.expected_output_tokens
            self.worker_table.add_waiting(worker, -waited, -live.hit_tokens)
        held = live.call.prompt_tokens - live.cached_tokens + live.output_tokens
        more = held - live.demand_tokens
        if more:
            live.demand_tokens = held
            self.grow(live, more)

    def grow(self, live: QueuedCall, tokens: int) -> None:
        """Add tokens held by the calls of this call's worker."""
        worker = self.worker_of(live)
        if worker is not None:
            self.worker_table.add_demand(worker, tokens)

    def decoded(self, entries: Iterable[tuple[QueuedCall, int]]) -> None:
        """Charge dispatched calls for their output tokens so far."""
        charged = []
        at, grown = None, 0  # a call of the current worker, and the new tokens of its calls
        for live, tokens in entries:
            more = tokens - live.output_tokens
            if not live.started:
                live.output_tokens = max(live.output_tokens, tokens)
                self.start(live)
                self.feeder.charge(live.call.call_id, live.usage())
            elif more > 0:
                live.output_tokens = tokens
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

    def leave(self, live: QueuedCall, output_tokens: int, now_s: float) -> None:
        """Remove a dispatched call from its worker."""
        self.start(live)
        worker = self.worker_of(live)
        if worker is not None:
            self.locality.left(live.call, worker.worker_id, now_s)
            self.worker_table.add_demand(worker, -live.demand_tokens)
            worker.calls -= 1
        worker_id = None if worker is None else worker.worker_id
        self.router.finished(live.call, worker_id, live.charge_factor, output_tokens)

    def requeue(self, live: QueuedCall, client: ClientPath, now_s: float) -> list[ev.Command]:
        """Requeue a call whose worker failed before the first token; other workers are preferred.

        It waits as a call of ``client``, which may differ from the client at dispatch.
        """
        assert live.worker_id is not None
        self.leave(live, 0, now_s)
        live.avoid.append(live.worker_id)
        live.worker_id = None
        live.call.client = client
        live.cached_tokens = live.output_tokens = 0
        return self.feed.requeue(live)

    # --- workers ----------------------------------------------------------------------------------

    def join(self, event: ev.WorkerJoined) -> list[ev.Command]:
        """Add a worker. Raises ValueError if it has joined already, or has no capacity."""
        self.worker_table.join(
            event.worker_id, event.kv_capacity_tokens, event.context_tokens, event.kind
        )
        self.locality.add_worker(event.worker_id, event.kv_capacity_tokens)
        self.router.add_worker(event.worker_id)
        return self.feed.pump()

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
        return self.feed.pump()

    def lose(self, worker: Worker) -> None:
        """Remove a worker and its cache."""
        self.worker_table.lose(worker)
        if not worker.draining:
            self.router.remove_worker(worker.worker_id)
        self.locality.remove_worker(worker.worker_id)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        self.router.tick(now_s)  # so that the snapshot includes the time since the last tick
        return {
            "locality": self.locality.snapshot(now_s),
            "feeder": self.feeder.snapshot(),
            "router": self.router.snapshot(),
            "worker_table": self.worker_table.snapshot(now_s),
            "overloaded": self.overload.overloaded,
        }

    def restore(self, state: dict[str, Any], calls: Iterable[Call], now_s: float) -> None:
        """Replace the state by an earlier snapshot, except the feed, which :meth:`resume` sets.

        ``calls`` are the live calls of this pool.
        """
        by_id = {call.call_id: call for call in calls}
        self.locality.restore(state["locality"], by_id.values(), now_s)
        self.feeder.restore(state["feeder"], by_id)
        self.router.restore(state["router"])
        self.router.tick(now_s)
        self.worker_table.restore(state["worker_table"], now_s)
        self.overload.overloaded = state["overloaded"]

    def resume(self, lives: Iterable[QueuedCall]) -> None:
        """Continue with these calls, which feeder and router already contain."""
        self.feed.restore(lives)
