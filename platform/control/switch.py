"""Changing the system while calls run: a new dispatcher that takes over what the old one holds.

What belongs to people and workers goes over unchanged: profiles, limits, runs, workers, believed
caches. Policies that are replaced begin with fair counters but know every call under way, so nothing
is lost, refused or granted twice by the change. A policy whose name and options stay keeps its state,
unless the system's levels or its rule for newcomers change: then all clients are others. (The levels of
one tenant change by an event, :meth:`Dispatcher.handle`, which leaves every other tenant as it is.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fairserve.interactions.call import Call, TokenUsage, client_path
from fairserve.scheduling.base import Feeder, Router
from fairserve.scheduling.dispatcher import Dispatcher
from fairserve.scheduling.model_pool import ModelPool
from fairserve.scheduling.newcomers import newcomers_of
from fairserve.scheduling.system import SystemConfig
from fairserve.scheduling.worker_table import WorkerTable
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
    throttle = dispatcher.admission.throttle
    if (system.throttle, system.throttle_options) != (before.throttle, before.throttle_options):
        throttle = _built(THROTTLES[system.throttle], **system.throttle_options)

    block_tokens = dispatcher.first.locality.block_tokens
    # New throughout: a feeder that is replaced would go on to follow the old one's tree.
    pools = {
        model: _built(ModelPool, system, dispatcher.directory, seed=seed, block_tokens=block_tokens)
        for model in dispatcher.pools or [""]
    }
    first = next(iter(pools.values()))
    newcomers = dispatcher.newcomers
    if system.newcomers != before.newcomers:
        newcomers = newcomers_of(system, dispatcher.directory)
    same_clients = (system.levels, system.newcomers) == (before.levels, before.newcomers)
    for call, _, _ in calls if not same_clients else ():
        call.client = client_path(call, dispatcher.directory.levels(call.tenant) or system.levels)
        if newcomers is not None:
            call.client = newcomers.client_of(call, call.client, now_s)
    same_feeder = same_clients and (
        (system.feeder, system.feeder_options) == (before.feeder, before.feeder_options)
    )
    same_router = same_clients and (
        (system.router, system.router_options) == (before.router, before.router_options)
    )
    for model, old in dispatcher.pools.items():
        pool, own = pools[model], [entry for entry in calls if entry[0].pool == model]
        state = old.snapshot(now_s)
        if not same_feeder:
            state["feeder"] = pool.feeder.snapshot()
        if not same_router:
            state["router"] = pool.router.snapshot()
        pool.restore(state, [call for call, _, _ in own], now_s)
        if not same_router:
            _fill_router(pool.router, pool.worker_table, own)
    dispatcher.system, dispatcher.admission.throttle = system, throttle
    dispatcher.tracker.immunity = system.immunity
    dispatcher.newcomers = newcomers
    if newcomers is not None:
        newcomers.slices, newcomers.growth_s = system.newcomer_slices, system.newcomer_growth_s
    dispatcher.first = first
    dispatcher.compose(pools if dispatcher.pools else {})
    if not same_feeder:  # they share by now what they charge
        for model, pool in dispatcher.pools.items():
            _fill_feeder(pool.feeder, [entry for entry in calls if entry[0].pool == model])


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


def _fill_router(router: Router, worker_table: WorkerTable, calls: Sequence[LiveState]) -> None:
    """Tell a new router of the workers and of what runs on them."""
    for name in worker_table.workers:
        router.add_worker(name)
    for call, worker_id, _ in calls:
        if worker_id is not None and worker_id in worker_table.workers:
            router.dispatched(call, worker_id, 1.0)
    for worker in worker_table.workers.values():
        if worker.draining:
            router.remove_worker(worker.worker_id)


def _built(factory: Callable[..., P], *arguments: Any, **options: Any) -> P:
    """A policy from its registry. An option that it does not have is the caller's error."""
    try:
        return factory(*arguments, **options)
    except TypeError as error:
        raise ValueError(str(error)) from error
