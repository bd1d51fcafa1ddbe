"""Replaces the system of a dispatcher while calls are queued and running.

Profiles, limits, runs, workers and believed caches are kept. A new policy starts with fair counters
and all queued and running calls, so that no call is lost, rejected or granted twice. A policy whose
name and options do not change keeps its state, unless the levels or the rule for newcomers change,
which changes all clients. (The levels of one tenant change by an event, :meth:`Dispatcher.handle`,
which affects no other tenant.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fairserve.interactions.call import Call, TokenUsage, client_path
from fairserve.scheduling.base import Feeder, Router
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.dispatch.model_pool import ModelPool
from fairserve.scheduling.dispatch.worker_table import WorkerTable
from fairserve.scheduling.fairness.newcomers import newcomers_of
from fairserve.scheduling.system import SystemConfig
from fairserve.throttling.registry import THROTTLES

P = TypeVar("P")

LiveState = tuple[Call, str | None, TokenUsage]
"""A call, its worker (None while queued), and its usage so far."""


def switch_system(
    dispatcher: Dispatcher,
    system: SystemConfig,
    calls: Sequence[LiveState],
    seed: int,
    now_s: float,
) -> None:
    """Change the dispatcher to ``system``; everything that can fail precedes the first change.

    ``calls`` are all queued and running calls in the order of acceptance; ``seed`` is the
    dispatcher's. Raises ValueError, KeyError or TypeError for options that a policy does not
    accept.
    """
    before = dispatcher.system
    # Everything that can fail is built first.
    throttle = dispatcher.admission.throttle
    if (system.throttle, system.throttle_options) != (before.throttle, before.throttle_options):
        throttle = _built(THROTTLES[system.throttle], **system.throttle_options)

    block_tokens = dispatcher.first.locality.block_tokens
    # The pools are all new: a kept feeder would continue to use the prefix tree of its old pool.
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
            state["background_feeder"] = pool.background_feeder.snapshot()
        if not same_router:
            state["router"] = pool.router.snapshot()
        pool.restore(state, [call for call, _, _ in own], now_s)
        if not same_router:
            there = [entry for entry in own if dispatcher.is_at_worker(entry[0].call_id)]
            _fill_router(pool.router, pool.worker_table, there)
    dispatcher.system, dispatcher.admission.throttle = system, throttle
    dispatcher.tracker.immunity = system.immunity
    dispatcher.newcomers = newcomers
    if newcomers is not None:
        newcomers.slices, newcomers.growth_s = system.newcomer_slices, system.newcomer_growth_s
    dispatcher.first = first
    dispatcher.compose(pools if dispatcher.pools else {})
    if not same_feeder:  # the new feeders share their counters from now on
        for call, _, _ in calls:
            dispatcher.directory.trust.cancel(call.call_id)  # the old ones end none of these
        for model, pool in dispatcher.pools.items():
            own = [entry for entry in calls if entry[0].pool == model]
            _fill_feeder(pool.feeder, [entry for entry in own if not entry[0].background])
            _fill_feeder(pool.background_feeder, [entry for entry in own if entry[0].background])


def _fill_feeder(feeder: Feeder, calls: Sequence[LiveState]) -> None:
    """Add the calls to a new feeder: granted ones first, then the queue in order."""
    for call, worker_id, usage in calls:
        if worker_id is not None:
            feeder.add(call)
            feeder.dispatch(call.call_id, usage.cached_tokens)
            feeder.charge(call.call_id, usage)
    for call, worker_id, _ in calls:
        if worker_id is None:
            feeder.add(call)


def _fill_router(router: Router, worker_table: WorkerTable, calls: Sequence[LiveState]) -> None:
    """Add the workers and their running calls to a new router."""
    for name in worker_table.workers:
        router.add_worker(name)
    for call, worker_id, _ in calls:
        assert worker_id is not None, "the call is at a worker"
        router.dispatched(call, worker_id, 1.0)
    for worker in worker_table.workers.values():
        if worker.draining:
            router.remove_worker(worker.worker_id)


def _built(factory: Callable[..., P], *arguments: Any, **options: Any) -> P:
    """Build a policy; raise ValueError for an option that it does not have."""
    try:
        return factory(*arguments, **options)
    except TypeError as error:
        raise ValueError(str(error)) from error
