"""Levels of one tenant, set while calls run and wait, affect only that tenant in whole systems."""

import json
from collections import Counter

import pytest
from virtual_cluster import VirtualCluster, make_call

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

SYSTEMS_WITH_COUNTERS = {
    "fs-w": {},
    "fairserve": {"local.quantum": 100.0},
    "central-dlpm": {"feeder.quantum": 100.0},
}
BY_APP = "tenant > app > user"
INVENTED = 90


def system(name, **options):
    return SYSTEMS[name].with_options({**SYSTEMS_WITH_COUNTERS.get(name, {}), **options})


def crowded(name, *, levels=None, system_levels="tenant > user"):
    """Return tenant ``t``, one of whose two apps invents a user for each call, and tenant ``o``.

    All calls are alike and wait from the beginning.
    """
    cluster = VirtualCluster(system(name, levels=system_levels), workers=1, kv_tokens=400)
    profile = AppProfile((StageProfile(32, 0, 8),), calls_per_interaction=1)
    for app in ("honest", "crowd", "other"):
        cluster.event(ev.AppChanged(app, profile, Limits()))
    if levels is not None:
        cluster.event(ev.TenantChanged("t", levels=levels))
    for number in range(INVENTED):
        cluster.arrive(make_call(f"c{number}", app="crowd", user=f"u{number}"))
        cluster.arrive(make_call(f"h{number}", app="honest", user="one"))
        cluster.arrive(make_call(f"o{number}", tenant="o", app="other", user="one"))
    return cluster


def served(cluster, calls):
    """Return the number of calls of each app that end while ``calls`` more end."""
    before = len(cluster.ended)
    while len(cluster.ended) < before + calls:
        cluster.run(cluster.now_s + 0.02)
    return Counter(cluster.calls[call_id].app for call_id in list(cluster.ended)[before:])


def counters(cluster, paths):
    feeder = cluster.dispatcher.first.feeder
    return {path: (feeder.counter(path), feeder.least_counter(path[:-1])) for path in paths}


@pytest.mark.parametrize("name", SYSTEMS_WITH_COUNTERS)
def test_invented_users_of_an_app_take_nothing_from_its_sibling(name):
    before = served(crowded(name), 100)
    assert before["crowd"] > 5 * before["honest"], "ninety users beside one"
    after = served(crowded(name, levels=BY_APP), 100)
    assert abs(after["crowd"] - after["honest"]) <= 8
    assert abs(after["other"] - before["other"]) <= 8, "its own tenant's share is as it was"


@pytest.mark.parametrize("name", SYSTEMS_WITH_COUNTERS)
def test_new_levels_apply_to_waiting_calls(name):
    cluster = crowded(name)
    served(cluster, 40)
    paths = [("o",), ("o", "one"), ("t",)]
    before = counters(cluster, paths)
    cluster.event(ev.TenantChanged("t", levels=BY_APP))
    assert counters(cluster, paths) == before, "what was received stays, at every level that stays"
    queued = {call.call_id: call.client for call in cluster.dispatcher.first.feeder.waiting()}
    assert len(queued) > 100
    assert {client for client in queued.values() if client[0] == "t"} == {
        ("t", call.app, call.user) for call in map(cluster.calls.get, queued) if call.tenant == "t"
    }
    share = served(cluster, 90)
    assert abs(share["crowd"] - share["honest"]) <= 8
    assert abs(share["other"] - 45) <= 8
    cluster.event(ev.TenantChanged("t"))
    back = served(cluster, 40)
    assert back["crowd"] > 2 * back["honest"], "and back to the system's levels"
    cluster.run(cluster.now_s + 60)
    assert Counter(outcome for outcome, _ in cluster.ended.values()) == {"completed": 3 * INVENTED}
    assert not cluster.dispatcher.first.feeder.snapshot()["dispatched"]


@pytest.mark.parametrize("name", SYSTEMS_WITH_COUNTERS)
def test_a_tenant_that_is_behind_stays_behind(name):
    """The tenant keeps its claim to be next: nothing is lifted as if it had been idle."""
    cluster = VirtualCluster(system(name), workers=1, kv_tokens=100)
    for call_id in ("o0", "o1", "o2", "t0", "t1"):
        cluster.arrive(make_call(call_id, tenant=call_id[0]))
    cluster.event(ev.CallEnded("o0", "completed", TokenUsage(32, 0, 0, 50_000)))
    waiting = [call.call_id for call in cluster.dispatcher.first.feeder.waiting()]
    assert sum(call_id[0] == "t" for call_id in waiting) == 1, "its last one is moved"
    before = counters(cluster, [("t",), ("o",)])
    assert before["t",][0] < before["o",][0]
    assert before["o",][1] is not None, "both wait"
    cluster.event(ev.TenantChanged("t", levels=BY_APP))
    assert counters(cluster, [("t",), ("o",)]) == before


@pytest.mark.parametrize("name", SYSTEMS_WITH_COUNTERS)
def test_a_requeued_call_waits_under_the_new_levels(name):
    cluster = VirtualCluster(system(name), workers=1)
    cluster.arrive(make_call("c", app="a"))
    cluster.event(ev.TenantChanged("t", levels=BY_APP))
    assert cluster.calls["c"].client == ("t", "u"), "it runs under the path that it is charged to"
    cluster.lose("w0")
    assert cluster.calls["c"].client == ("t", "a", "u")
    feeder = cluster.dispatcher.first.feeder
    assert feeder.counter(("t", "u")) == 0
    cluster.join("w1", 4000)
    cluster.run(2.0)
    assert cluster.ended["c"][0] == "completed"
    assert feeder.counter(("t", "a", "u")) != 0 or name == "central-dlpm", "which had its payment"
    assert not feeder.snapshot()["dispatched"]


@pytest.mark.parametrize("name", ["fcfs", *SYSTEMS_WITH_COUNTERS])
def test_a_snapshot_has_the_levels_and_the_paths(name):
    """As after a failover, the remaining calls are handled equally in a restored dispatcher."""
    cluster = crowded(name)
    served(cluster, 30)
    cluster.event(ev.TenantChanged("t", weight=2.0, levels=BY_APP))
    state = json.loads(json.dumps(cluster.dispatcher.snapshot(cluster.now_s)))
    restored = Dispatcher(cluster.system, seed=7)
    restored.restore(state, cluster.now_s)
    assert restored.levels("t") == BY_APP
    assert restored.levels("o") == "tenant > user"
    assert json.loads(json.dumps(restored.snapshot(cluster.now_s))) == state
    for dispatcher in (cluster.dispatcher, restored):
        call = make_call("later", app="crowd", user="new")
        dispatcher.handle(ev.CallArrived(call), cluster.now_s)
        assert call.client == ("t", "crowd", "new")
    feeders = [cluster.dispatcher.first.feeder, restored.first.feeder]
    while len(feeders[0]):
        chosen = {feeder.peek({"w0"}).call_id for feeder in feeders}
        assert len(chosen) == 1
        for feeder in feeders:
            feeder.dispatch(*chosen, 0)


def test_with_one_system_level_the_tenant_is_one_client():
    """Ninety users of a tenant with its own levels together get the share of one user of the others."""
    cluster = crowded("fairserve", levels=BY_APP, system_levels="user")
    share = served(cluster, 80)
    assert abs(share["other"] - 40) <= 8
    assert abs(share["crowd"] - share["honest"]) <= 8


def test_unknown_levels_are_rejected():
    dispatcher = Dispatcher(SYSTEMS["fairserve"])
    for levels in ("user", "team", ""):
        with pytest.raises(ValueError, match="allowed: 'tenant > user', 'tenant > app > user', or"):
            dispatcher.handle(ev.TenantChanged("t", levels=levels), 0.0)
    assert dispatcher.levels("t") == "tenant > user"
