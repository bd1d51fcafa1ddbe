"""The gate of runs: what residents hold, and in which order runs begin and continue."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_events import RandomEvents, outcome

from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS

GATED = SYSTEMS["fairserve"].with_options({"resident_share": 0.3, "hold_s": 25.0})


def started(seed):
    """Return a dispatcher, its events, and the calls that it has sent to workers so far."""
    source = RandomEvents(random.Random(seed), refusals=False)
    dispatcher = Dispatcher(GATED, seed=1)
    for event in source.begin():
        source.took(dispatcher.handle(event, source.now_s))
    return dispatcher, source


def held_at(pool):
    sums = {}
    for _, each in pool.gate.residents.all():
        sums[each.worker_id] = sums.get(each.worker_id, 0.0) + each.tokens
    return sums


def check_counts(dispatcher):
    """Compare what the residents believe with the calls in progress."""
    live = list(dispatcher._live.values())
    for model, pool in dispatcher.pools.items():
        residents, sums = pool.gate.residents, held_at(pool)
        for worker_id in pool.worker_table.workers:
            assert residents._held[worker_id] == pytest.approx(sums.pop(worker_id, 0.0), abs=1e-6)
        assert not sums, "a resident without a worker"
        for run_id, each in residents.all():
            own = [
                one
                for one in live
                if one.call.interaction_id == run_id
                and one.call.pool == model
                and not one.call.background
            ]
            assert each.running <= sum(one.worker_id is not None for one in own)
            assert each.queued <= sum(one.worker_id is None for one in own)


@given(st.integers(0, 2**32))
def test_footprints_and_counts_follow_the_calls(seed):
    dispatcher, source = started(seed)
    for _ in range(80):
        commands = outcome(dispatcher, source.next(), source.now_s)
        source.took(commands if isinstance(commands, list) else ())
        check_counts(dispatcher)


@given(st.integers(0, 2**32))
def test_a_run_begins_only_where_it_fits(seed):
    """At a worker with residents, the footprints stay within the share when a run begins."""
    dispatcher, source = started(seed)
    for _ in range(80):
        known = {
            model: {run_id for run_id, _ in pool.gate.residents.all()}
            for model, pool in dispatcher.pools.items()
        }
        begun = {
            model: set(pool.feeder._active_runs.interactions)
            for model, pool in dispatcher.pools.items()
        }
        event = source.next()
        commands = outcome(dispatcher, event, source.now_s)
        source.took(commands if isinstance(commands, list) else ())
        if isinstance(event, ev.Tick):
            continue  # a run that was held for too long begins in place of others
        for model, pool in dispatcher.pools.items():
            residents = pool.gate.residents
            new = [
                each
                for run_id, each in residents.all()
                if run_id not in known.get(model, ()) and run_id not in begun.get(model, ())
            ]
            for each in new:
                others = sum(each.worker_id == other.worker_id for _, other in residents.all()) > 1
                capacity = pool.worker_table.workers[each.worker_id].kv_capacity_tokens
                if others and len(new) == 1:
                    assert held_at(pool)[each.worker_id] <= 0.3 * capacity + 1e-6
