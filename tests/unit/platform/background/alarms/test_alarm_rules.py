"""Simulate the alarm rules over virtual time: what raises an alarm, which one, and when it ends."""

from collections import deque

import pytest
from alarm_world import AlarmWorld

from fairserve.platform.background.alarms.open_alarms import CLEAR_S

NOTICED_S = 10.0
"""Longest time until an alarm, in virtual seconds."""
ENDS_S = 60.0 + CLEAR_S + 5.0
"""Longest time until an alarm is resolved: the long window, and the hysteresis."""


def crowd(world, clients=1_000, calls_per_s=0.03):
    """Add small clients of a hundred apps: 30 calls/s in all."""
    for number in range(clients):
        world.client(f"t{number % 100}", f"u{number}", calls_per_s)


@pytest.fixture
def world():
    """A server at a third of its capacity, after five quiet minutes."""
    world = AlarmWorld(slots=20)
    crowd(world)
    world.client("small", "ann", 2.0)
    assert world.run(300) == []
    return world


def test_an_hour_of_small_clients_has_no_alarm():
    world = AlarmWorld(slots=12)
    crowd(world)
    assert world.run(3600) == []


def opened(world):
    """Return the one alarm that opens in time."""
    (alarm,) = world.run(NOTICED_S)
    assert world.run(120) == [], "one cause is one alarm"
    assert world.open == [alarm.key.kind]
    return alarm


def ended(world, *, effects_s=0.0):
    """Check that the alarm is resolved in time, and none follows it."""
    assert world.run(effects_s + ENDS_S) == []
    assert world.open == []
    assert world.run(300) == []


def test_a_small_tenant_cut_off_by_a_wrong_limit_has_one_alarm(world):
    world.limits["app-small"] = 6
    alarm = opened(world)
    assert alarm.key[:3] == ("calls_rejected", "small", "app-small")
    assert alarm.facts["reason"] == "contract_rpm"
    assert alarm.facts["rejected"] >= 5
    del world.limits["app-small"]
    ended(world)


def test_an_alarm_is_over_soon_after_its_limit_is_corrected(world):
    world.limits["app-small"] = 6
    (alarm,) = world.run(30)
    del world.limits["app-small"]
    world.run(30)
    assert (alarm.state, alarm.over) == ("open", True)
    world.limits["app-small"] = 6
    assert world.run(NOTICED_S) == []
    assert not alarm.over, "the same alarm"


def test_a_flood_that_makes_others_wait_is_one_alarm_about_the_flooder(world):
    flooder = world.client("t1", "eve", 600.0)
    (alarm,) = world.run(NOTICED_S)
    assert alarm.key == ("over_share", *flooder)
    assert len(alarm.affected) > 50
    world.client("t1", "eve", 0.0)
    ended(world, effects_s=120)


def test_a_client_that_takes_most_while_nobody_waits_has_no_alarm(world):
    world.client("t1", "busy", 50.0)
    assert world.run(600) == []


def test_a_lost_worker_is_one_alarm_also_for_those_who_wait(world):
    world.client("t1", "busy", 20.0)
    world.run(60)
    world.workers[0] = world.workers[1] = "open circuit"
    alarm = opened(world)
    assert alarm.key.kind == "no_worker"
    assert len(alarm.affected) > 50
    world.workers[0] = world.workers[1] = "ready"
    ended(world, effects_s=300)


def test_one_of_two_workers_lost_is_one_alarm_about_it(world):
    world.client("t1", "busy", 20.0)
    world.run(60)
    world.workers[0] = "open circuit"
    assert opened(world).key == ("worker_failing", "", "", "w0")
    world.workers[0] = "ready"
    ended(world, effects_s=300)


LEARNED_S = 2 * 3600.0
"""Time after which any share of rejections is usual."""


def test_a_quota_that_works_as_set_is_not_an_alarm_for_ever():
    """The server starts with apps over their quotas: there is no usual share to compare with."""
    world = AlarmWorld()
    for number, calls_per_s in enumerate((0.25, 0.5, 2.0)):
        world.client(f"t{number}", "ann", calls_per_s)
        world.limits[f"app-t{number}"] = 6
    world.run(120)
    assert world.open == ["calls_rejected"] * 3
    assert len(world.run(LEARNED_S)) <= 1, "of 15 calls a minute any share is possible"
    assert world.open == []
    # What is usual for the app is forgotten after a while without it.
    world.limits.clear()
    assert world.run(LEARNED_S) == []
    world.limits["app-t2"] = 6
    assert len(world.run(NOTICED_S)) == 1


def test_a_changed_quota_is_an_alarm_until_it_is_acknowledged():
    world = AlarmWorld()
    world.client("small", "ann", 1.0)
    world.run(60)
    world.limits["app-small"] = 0
    alarm = opened(world)
    alarm.cause = {"change": {"actor": "anna"}}
    world.run(LEARNED_S)
    assert world.open == ["calls_rejected"]
    alarm.acknowledged_at = world.now_s
    world.run(LEARNED_S)
    assert world.open == []


def test_a_client_over_its_share_of_a_model_explains_no_wait_for_another():
    world = AlarmWorld(slots=20, more_slots={"n": 10})
    crowd(world)
    waits = world.client("small", "ann", 2.0, model="n")
    for number in range(20):
        world.client(f"n{number}", "ann", 2.0, model="n")
    world.run(60)
    world.client("t1", "eve", 600.0)
    (alarm,) = world.run(NOTICED_S)
    assert (alarm.key.kind, alarm.facts["models"]) == ("over_share", ["m"])
    world.more_slots["n"] = 1
    later = world.run(60)
    assert {each.key.kind for each in later} == {"calls_waiting"}
    assert waits[:2] in {each.key[1:3] for each in later}
    assert waits[:2] not in alarm.affected
    # Of those who overload a model, nobody is over its share of it: the flooder is at another.
    world.overloaded.add("n")
    assert [each.key for each in world.run(NOTICED_S)] == [("overloaded", "", "", "n")]


def test_a_client_is_over_its_share_of_a_model_while_a_worker_of_another_fails(world):
    world.more_slots["n"], world._queues["n"] = 2, deque()
    quiet = world.client("small", "bob", 1.0, app="app-n", model="n")
    world.workers[0] = "open circuit"
    assert opened(world).key.kind == "worker_failing"
    flooder = world.client("t1", "eve", 100.0, app="app-n", model="n")
    (alarm,) = world.run(NOTICED_S)
    assert alarm.key == ("over_share", *flooder)
    assert quiet[:2] in alarm.affected


def test_a_failing_app_has_one_alarm(world):
    world.failing.add("app-small")
    assert opened(world).key[:3] == ("calls_failing", "small", "app-small")
    world.failing.clear()
    ended(world)


def test_what_an_operator_made_is_no_alarm(world):
    world.blocked.add(world.client("small", "ann", 20.0))
    assert world.run(300) == []
    world.workers[0] = "draining"
    assert world.run(300) == []


def test_one_user_at_its_limit_is_no_alarm_about_the_app(world):
    """The app of ten users is no victim if one of them is rejected."""
    for number in range(9):
        world.client("small", f"u{number}", 1.0)
    world.run(60)
    world.client("small", "ann", 20.0)
    world.limited_user = ("small", "app-small", "ann")
    assert world.run(300) == []


def test_a_condition_that_comes_and_goes_is_one_alarm(world):
    world.limits["app-small"] = 6
    opened(world)
    for _ in range(5):
        del world.limits["app-small"]
        assert world.run(40) == []
        world.limits["app-small"] = 6
        assert world.run(20) == []
    assert world.open == ["calls_rejected"]
