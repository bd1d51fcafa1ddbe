"""Levels of tenants may change at any time, with failing workers and cancelled calls."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import VirtualCluster, make_call

from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS

LEVELS = [None, "tenant > user", "tenant > app > user"]
NAMES = ["a", "b", "c"]
"""Names of apps and of users: an app and a user may have the same name."""


def tops(dispatcher):
    """Return the counters of the outermost level, by model."""
    return {
        (model, tenant): pool.feeder.counter((tenant,))
        for model, pool in dispatcher.pools.items()
        for tenant in ("t0", "t1", "t2")
    }


@given(
    st.integers(0, 2**32),
    st.sampled_from(["fairserve", "fs-w", "central-dlpm"]),
    st.sampled_from(["user", "tenant > user", "tenant > app > user"]),
)
def test_no_call_is_lost_and_no_tenant_gains(seed, name, levels):
    """Each change leaves every tenant's counter unchanged; a restored snapshot behaves alike."""
    rng = random.Random(seed)
    cluster = VirtualCluster(SYSTEMS[name].with_options({"levels": levels}), kv_tokens=200)
    cluster.join("x0", 200, "x")
    lost = 0
    for number in range(60):
        kind = rng.random()
        if kind < 0.6:
            call = make_call(
                f"c{number}", tenant=f"t{rng.randrange(3)}", app=rng.choice(NAMES),
                user=rng.choice(NAMES), run=f"r{number}", output=rng.randint(1, 30),
            )  # fmt: skip
            call.pool = rng.choice(["", "x"])
            cluster.arrive(call)
        elif kind < 0.75:
            before = tops(cluster.dispatcher)
            tenant = f"t{rng.randrange(3)}"
            cluster.event(ev.TenantChanged(tenant, levels=rng.choice(LEVELS)))
            if levels != "user":
                assert tops(cluster.dispatcher) == before
            for pool in cluster.dispatcher.pools.values():
                for call in pool.feeder.waiting():
                    assert call.client == cluster.dispatcher.path(call, cluster.now_s)
        elif kind < 0.8 and lost < 5:
            lost += 1
            cluster.lose("w1" if "w1" in cluster.workers else f"again{lost - 1}")
            cluster.join(f"again{lost}", 200)
        elif kind < 0.85 and (queued := _queued(cluster)):
            cluster.event(ev.CancelRequested(rng.choice(queued)))
        else:
            cluster.run(cluster.now_s + 0.05)
    state = json.loads(json.dumps(cluster.dispatcher.snapshot(cluster.now_s)))
    restored = Dispatcher(cluster.system, seed=7)
    restored.restore(state, cluster.now_s)
    assert json.loads(json.dumps(restored.snapshot(cluster.now_s))) == state
    cluster.dispatcher = restored
    cluster.run(cluster.now_s + 1500)  # runs that nobody ends keep their places, ever shorter
    assert set(cluster.ended) == set(cluster.calls) - set(cluster.refused)
    for pool in restored.pools.values():
        assert not len(pool.feeder)
        assert not pool.feeder.snapshot()["dispatched"]
        if name != "central-dlpm":
            counters = pool.feeder._counters
            for node in counters._root.below():
                assert (node.calls, node.queued) == (0, 0)
                assert node.reserved == pytest.approx(0, abs=1e-6)


def _queued(cluster):
    return [
        call.call_id for pool in cluster.dispatcher.pools.values() for call in pool.feeder.waiting()
    ]
