"""In whole systems with levels, invented users or apps gain their tenant nothing."""

import pytest
from virtual_cluster import VirtualCluster, make_call

from fairserve.interactions.call import LEVELS, path_of_id
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

SMALL_QUANTA = {
    "vtc": {},
    "drr": {"local.quantum": 100.0},
    "dlpm": {"local.quantum": 100.0, "router.quantum": 200.0},
    "fs-w": {},
    "fairserve": {"local.quantum": 100.0},
}
"""Options where the default is worth more calls than the test has."""
CALLS = 80


def first_half(name, levels, invented):
    """Return the ended calls by tenant when half of all calls have ended.

    Both tenants send equally many, ``b`` under invented names. All calls are alike, share nothing,
    and wait from the beginning, those of ``b`` first.
    """
    system = SYSTEMS[name].with_options({"levels": levels, **SMALL_QUANTA[name]})
    cluster = VirtualCluster(system, workers=1, kv_tokens=400)
    for app in ("app", *(f"app{n}" for n in range(CALLS))):
        profile = AppProfile((StageProfile(32, 0, 8),), calls_per_interaction=1)
        cluster.event(ev.AppChanged(app, profile, Limits()))
    for tenant in ("b", "a"):
        for number in range(CALLS):
            names = {"user": "u"}
            if tenant == "b":
                names |= {kind: f"{kind}{number}" for kind in invented}
            cluster.arrive(make_call(f"{tenant}{number}", tenant=tenant, **names))
    ended = {"a": 0, "b": 0}
    cluster.on_end = lambda call, outcome: ended.__setitem__(call.tenant, ended[call.tenant] + 1)
    while sum(ended.values()) < CALLS:
        cluster.run(cluster.now_s + 0.05)
    return ended


@pytest.mark.parametrize("name", SMALL_QUANTA)
def test_invented_users_get_no_shares(name):
    flat = first_half(name, "user", ["user"])
    assert flat["a"] <= CALLS // 4, "eighty users against one"
    for levels in ("tenant > user", "tenant > app > user"):
        ended = first_half(name, levels, ["user"])
        assert abs(ended["a"] - ended["b"]) <= 12, levels


@pytest.mark.parametrize("name", SMALL_QUANTA)
def test_invented_apps_get_no_shares(name):
    ended = first_half(name, "tenant > app > user", ["app", "user"])
    assert abs(ended["a"] - ended["b"]) <= 12


@pytest.mark.parametrize("name", ["fcfs", "central-dlpm", "fairserve"])
@pytest.mark.parametrize("levels", LEVELS)
def test_workers_get_the_client_path(name, levels):
    cluster = VirtualCluster(SYSTEMS[name].with_options({"levels": levels}))
    call = make_call("c", tenant="t/1", app="a", user="u/%2F")
    cluster.arrive(call)
    (admit,) = (command for command in cluster.commands if isinstance(command, ev.Admit))
    assert path_of_id(admit.client_id) == call.client
    if levels == "user":
        assert path_of_id(call.client[0]) == ("t/1", "u/%2F")
    else:
        assert call.client == ("t/1", "a", "u/%2F")[:: 1 if "app" in levels else 2]


def test_unknown_levels_are_rejected():
    with pytest.raises(ValueError, match="levels is 'team'; allowed: 'user', 'tenant > user'"):
        SYSTEMS["fairserve"].with_options({"levels": "team"})
