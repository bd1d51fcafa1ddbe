"""Changing the system while calls run: a new dispatcher that takes over what the old one holds.

What belongs to people and workers goes over unchanged: profiles, limits, runs, workers, believed
caches. Policies that are replaced begin with fair counters but know every call under way, so nothing
is lost, refused or granted twice by the change. A policy whose name and options stay keeps its state,
unless the levels change: then all clients are others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fairserve.interactions.call import Call, TokenUsage, client_path
from fairserve.interactions.tracker import Tracker
from fairserve.scheduling.base import Feeder, Router
from fairserve.scheduling.dispatcher import Dispatcher
from fairserve.scheduling.locality import Locality
from fairserve.scheduling.pool import Pool
from fairserve.scheduling.registry import FEEDERS, ROUTERS
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.overload import OverloadDetector, Watermarks
from fairserve.throttling.registry import THROTTLES

P = TypeVar("P")

LiveState = tuple[Call, str | None, TokenUsage]
"""A call under way, its worker (None: it is queued), and what it has used."""


def switch_system(
    dispatcher: Dispatcher,
    system: SystemConfig,
    calls: Sequence[LiveState],
    seed: int,
    now_s: float,
) -> None:
    """Change the dispatcher to ``system``, at the very end and in one go.

    ``calls`` are all calls under way in the order of their acceptance, ``seed`` is the dispatcher's.
    Raises ValueError, KeyError or TypeError for options that a policy does not take; nothing has
    changed then.
    """
    before = dispatcher.system
    # Everything that can fail is built first.
    throttle = dispatcher.throttle
    if (system.throttle, system.throttle_options) != (before.throttle, before.throttle_options):
        throttle = _built(THROTTLES[system.throttle], **system.throttle_options)
    overload = OverloadDetector(Watermarks(system.high_watermark, system.low_watermark))
    overload.overloaded = dispatcher.overload.overloaded
    tracker = Tracker(immunity_factor=system.immunity_factor)
    tracker.restore(dispatcher.tracker.snapshot(now_s), now_s)
    # New, because a feeder that is replaced would go on to follow the old one's tree.
    locality = Locality(seed, dispatcher.locality.block_tokens)
    locality.restore(dispatcher.locality.snapshot(now_s), [call for call, _, _ in calls], now_s)
    pool = Pool(system.feed_window, locality.workers, hits=system.hit_share is not None)
    pool.restore(dispatcher.pool.snapshot(now_s), now_s)
    feeder = _built(FEEDERS[system.feeder], dispatcher.directory, locality, **system.feeder_options)
    router = _built(ROUTERS[system.router], locality, **system.router_options)
    for call, _, _ in calls:
        call.client = client_path(call, system.levels)
    same_clients = system.levels == before.levels
    same_feeder = (system.feeder, system.feeder_options) == (before.feeder, before.feeder_options)
    if same_clients and same_feeder:
        feeder.restore(dispatcher.feeder.snapshot(), {call.call_id: call for call, _, _ in calls})
    else:
        _fill_feeder(feeder, calls)
    same_router = (system.router, system.router_options) == (before.router, before.router_options)
    if same_clients and same_router:
        router.restore(dispatcher.router.snapshot())
    else:
        _fill_router(router, pool, calls)
    dispatcher.system, dispatcher.throttle, dispatcher.overload = system, throttle, overload
    dispatcher.tracker = tracker
    dispatcher.compose(locality, pool, feeder, router)


def _fill_feeder(feeder: Feeder, calls: Sequence[LiveState]) -> None:
    """Tell a new feeder of the calls under way: the granted ones first, then the queue in order."""
    for call, worker_id, usage in calls:
        if worker_id is not None:
            feeder.add(call)
            feeder.dispatch(call.call_id, usage.cached_tokens)
            feeder.charge(call.call_id, usage)
    for call, worker_id, _ in calls:
        if worker_id is None:
            feeder.add(call)


def _fill_router(router: Router, pool: Pool, calls: Sequence[LiveState]) -> None:
    """Tell a new router of the workers and of what runs on them."""
    for worker in pool.serving():
        router.add_worker(worker)
    for call, worker_id, _ in calls:
        if worker_id is not None and worker_id in pool.workers:
            router.dispatched(call, worker_id, 1.0)


def _built(factory: Callable[..., P], *arguments: Any, **options: Any) -> P:
    """A policy from its registry. An option that it does not have is the caller's error."""
    try:
        return factory(*arguments, **options)
    except TypeError as error:
        raise ValueError(str(error)) from error
