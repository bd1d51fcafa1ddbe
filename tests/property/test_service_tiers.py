"""Calls of the tier ``priority`` get their app's granted share, and take nothing from its siblings."""

from collections import Counter

import pytest
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROFILE = AppProfile((StageProfile(40, 0, 10),), calls_per_interaction=1, idle_timeout_s=10.0)
CALLS = 400


def served(clients, *, granted=3.0, own=None, until_s=5.0):
    """Return the calls that each client got while all of them had calls waiting.

    ``clients`` are (tenant, app, user) with the share of their calls that are of the tier priority. The
    app ``vip`` has the grant, and the user ``u`` of the tenant ``a`` one of its ``own``.
    """
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=2, kv_tokens=600)
    for app in ("vip", "app"):
        cluster.event(ev.AppChanged(app, PROFILE, Limits(), 1.0, granted if app == "vip" else None))
    cluster.event(ev.UserChanged("a", "u", priority_weight=own))
    for number in range(CALLS):
        for place, ((tenant, app, user), priority) in enumerate(clients.items()):
            cluster.at(
                0.0,
                make_call(
                    f"{tenant}/{user}/{number}",
                    tenant=tenant,
                    app=app,
                    user=user,
                    tokens=prompt((10_000 + place * CALLS + number, 40)),
                    output=10,
                    priority=int((number + 1) * priority) > int(number * priority),
                ),
            )
    cluster.run(until_s)
    found = Counter(name.rpartition("/")[0] for name in cluster.ended)
    assert max(found.values()) < CALLS, "a client has nothing waiting any more"
    assert sum(found.values()) > 200
    return found


VIP, OTHER = ("a", "vip", "u"), ("b", "app", "u")


@pytest.mark.parametrize(
    ("granted", "priority"), [(3.0, 0.0), (3.0, 0.5), (3.0, 1.0), (5.0, 1.0), (5.0, 0.75)]
)
def test_a_mixture_of_tiers_gets_what_its_calls_are_charged(granted, priority):
    """A call of the tier costs a part of a call, so x of n calls get 1 / (1 - x + x / granted)."""
    found = served({VIP: priority, OTHER: 0.0}, granted=granted)
    expected = 1.0 / (1.0 - priority + priority / granted)
    assert found["a/u"] / found["b/u"] == pytest.approx(expected, rel=0.12)


def test_without_a_grant_the_tier_gives_nothing():
    found = served({("a", "app", "u"): 1.0, OTHER: 0.0})
    assert found["a/u"] / found["b/u"] == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("app", ["vip", "app"])
@pytest.mark.parametrize("own", [1.0, 5.0])
def test_a_users_grant_replaces_that_of_its_app(app, own):
    found = served({("a", app, "u"): 1.0, OTHER: 0.0}, own=own)
    assert found["a/u"] / found["b/u"] == pytest.approx(own, rel=0.12)


def test_other_users_of_the_tenant_neither_gain_nor_lose():
    """The tenant gets more, by as much as the calls of the tier: others are served as without them."""
    found = served({VIP: 1.0, ("a", "app", "sibling"): 0.0, OTHER: 0.0})
    assert found["a/sibling"] / found["b/u"] == pytest.approx(0.5, rel=0.12)
    assert found["a/u"] / found["b/u"] == pytest.approx(1.5, rel=0.12)


def test_a_grant_has_a_range():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=1, kv_tokens=600)
    with pytest.raises(ValueError, match="allowed: 1 to under 1e6"):
        cluster.event(ev.AppChanged("vip", PROFILE, Limits(), 1.0, 0.5))
    with pytest.raises(ValueError, match="allowed: 1 to under 1e6"):
        cluster.event(ev.UserChanged("a", "u", priority_weight=0.5))
