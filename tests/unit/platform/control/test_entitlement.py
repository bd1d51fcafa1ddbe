"""Entitlements follow the levels, in the unit of the system in force."""

import pytest

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.platform.control.entitlement import entitlements
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.events import AppChanged, TenantChanged, UserChanged
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

SMALL, LARGE = ("t", "small", "u"), ("t", "large", "v")
CLIENTS = [SMALL, LARGE, ("t", "large", "w"), ("other", "", "x")]


def entitled(system, *events, options=None, clients=CLIENTS):
    dispatcher = Dispatcher(SYSTEMS[system].with_options(options or {}), seed=0)
    small = AppProfile((StageProfile(80, 20, 0), StageProfile(200, 0, 50)))
    profiles = {"small": small, "large": AppProfile((StageProfile(1000, 0, 500),))}
    for app, profile in profiles.items():
        dispatcher.handle(AppChanged(app, profile, Limits()), 0.0)
    for event in events:
        dispatcher.handle(event, 0.0)
    found = entitlements(dispatcher, clients).service()
    return [found[client] for client in clients]


def test_a_share_follows_the_levels_of_each_tenant():
    assert entitled("fcfs") == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    own = TenantChanged("t", levels="tenant > app > user")
    assert entitled("fcfs", own) == pytest.approx([1 / 4, 1 / 8, 1 / 8, 1 / 2])


def test_a_weight_counts_among_siblings():
    heavy = UserChanged("t", "u", weight=9.0)
    assert entitled("fcfs", heavy) == pytest.approx([9 / 22, 1 / 22, 1 / 22, 1 / 2])


@pytest.mark.parametrize(
    ("system", "options", "ratio"),
    [
        ("fairserve", {}, 2000 / 200),
        ("fs-w", {}, 2000 / 200),
        ("fairserve", {"feeder.currency": "tokens"}, 1.0),
        ("vtc", {}, 1.0),
    ],
)
def test_where_typical_calls_count_large_ones_are_as_good_as_small_ones(system, options, ratio):
    """Tokens of a typical call: 1000 + 2 * 500, and the mean of 100 and of 200 + 2 * 50."""
    small, large = entitled(system, options=options, clients=[SMALL, LARGE])
    assert large / small == pytest.approx(ratio)
