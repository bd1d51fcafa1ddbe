"""Throttles keep their invariants and their Retry-After on random arrivals."""

import json
import math

import pytest
from histories import histories
from hypothesis import example, given
from hypothesis import strategies as st

from fairserve.throttling.base import Arrival, Limits
from fairserve.throttling.overload import new_users
from fairserve.throttling.overload.watermarks import OverloadDetector, Watermarks
from fairserve.throttling.overload.window import SlidingLog
from fairserve.throttling.registry import THROTTLES

gaps_s = st.sampled_from([0.0, 0.5, 10.0, 20.0, 30.0]) | st.floats(0, 30)
"""Integral gaps, which often add up to the window of 60 s exactly."""
arrivals = histories(
    st.tuples(
        gaps_s,
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
    ),
    80,
)


def arrival(user, overloaded=True, under_way=False, user_rpm=3, app_rpm=None, app="app"):
    return Arrival(f"u{user}", app, Limits(user_rpm, app_rpm), overloaded, under_way, "t")


def restored(name, throttle, now_s):
    """Return a throttle restored from a snapshot of another."""
    other = THROTTLES[name]()
    other.restore(json.loads(json.dumps(throttle.snapshot(now_s))), now_s)
    return other


def take(throttle, event, now_s):
    decision = throttle.check(event, now_s)
    throttle.commit(event, decision, now_s)
    return decision


@given(arrivals)
def test_oit_blocks_exactly_over_the_limit_under_overload_outside_runs(history):
    throttle, times, now_s = THROTTLES["oit"](), {}, 0.0
    for gap_s, user, overloaded, under_way in history:
        now_s += gap_s
        decision = take(throttle, arrival(user, overloaded, under_way), now_s)
        seen = times.setdefault(user, [])
        seen.append(now_s)
        count = sum(now_s - 60 < time for time in seen)
        assert decision.admitted == (count <= 3 or not overloaded or under_way)


@given(arrivals, st.sampled_from(["oit", "rpm"]))
@example([(1.2876004072465754, 1, False, False), *[(20.0, 1, False, False)] * 3], "oit")
def test_retry_after_is_exact_for_a_users_own_limit(history, name):
    throttle, now_s = THROTTLES[name](), 0.0
    for gap_s, user, _, _ in history:
        now_s += gap_s
        decision = take(throttle, arrival(user), now_s)
        if not decision.admitted:
            assert 0 < decision.retry_after_s <= 60 + 1e-6
            later_s = now_s + decision.retry_after_s
            assert throttle.check(arrival(user), later_s).admitted
            assert not throttle.check(arrival(user), later_s - 1e-3).admitted


@given(histories(st.tuples(gaps_s, st.integers(0, 1), st.sampled_from("ab")), 80))
def test_a_limit_across_apps_counts_all_calls_of_a_user(history):
    """Algorithm 1's limit, 5 calls, beside each app's own, 3; Retry-After is exact for both."""
    throttle, log, now_s = THROTTLES["oit"](user_limit=5), [], 0.0
    for gap_s, user, app in history:
        now_s += gap_s
        event = arrival(user, app=app)
        decision = take(throttle, event, now_s)
        log.append((user, app, now_s))
        of_user = [each for each in log if each[0] == user and each[2] > now_s - 60]
        in_app = sum(each[1] == app for each in of_user)
        assert decision.admitted == (len(of_user) <= 5 and in_app <= 3)
        use = throttle.use(event, now_s)
        assert use.remaining == max(0, min(5 - len(of_user), 3 - in_app))
        if not decision.admitted:
            assert (decision.reason, decision.scope) == ("overloaded_user_limit", "user")
            assert decision.limit in ({5} if in_app <= 3 else {3} if len(of_user) <= 5 else {3, 5})
            later_s = now_s + decision.retry_after_s
            assert throttle.check(event, later_s).admitted
            assert not throttle.check(event, later_s - 1e-3).admitted


@pytest.mark.parametrize("user_limit", [0, 1_000_001])
def test_a_limit_across_apps_out_of_range_is_rejected(user_limit):
    with pytest.raises(ValueError, match=f"user_limit is {user_limit}; allowed: 1 to 1000000"):
        THROTTLES["oit"](user_limit=user_limit)


APP_LIMITS = {"small": 1, "large": 5}
"""Calls per user and minute of two apps of one tenant."""


@given(
    histories(st.tuples(gaps_s, st.integers(0, 1), st.sampled_from(list(APP_LIMITS))), 80),
    st.sampled_from(["oit", "rpm"]),
)
def test_calls_to_one_app_neither_use_nor_free_the_limit_of_another(history, name):
    together, apart = THROTTLES[name](), {app: THROTTLES[name]() for app in APP_LIMITS}
    now_s = 0.0
    for gap_s, user, app in history:
        now_s += gap_s
        event = arrival(user, user_rpm=APP_LIMITS[app], app=app)
        assert take(together, event, now_s) == take(apart[app], event, now_s)
        assert together.use(event, now_s) == apart[app].use(event, now_s)


LIMIT_OF_NEW = 2


def of_new(user, overloaded=True, under_way=False, app="app"):
    limits = Limits(None, None, LIMIT_OF_NEW)
    return Arrival(f"u{user}", app, limits, overloaded, under_way, "t")


@given(histories(st.tuples(gaps_s, st.integers(0, 9), st.booleans(), st.booleans()), 80))
def test_new_users_of_an_app_are_bounded_without_affecting_known_ones(history):
    throttle, known, places, now_s = THROTTLES["oit"](), set(), [], 0.0
    for gap_s, user, overloaded, under_way in history:
        now_s += gap_s
        event = of_new(user, overloaded, under_way)
        free = sum(now_s - 60 < time for time in places) < LIMIT_OF_NEW
        decision = take(throttle, event, now_s)
        assert decision.admitted == (user in known or free or not overloaded or under_way)
        if not decision.admitted:
            assert (decision.reason, decision.scope) == ("overloaded_new_users_limit", "app")
            assert (decision.limit, decision.count) == (LIMIT_OF_NEW, LIMIT_OF_NEW + 1)
            later_s = now_s + decision.retry_after_s
            assert throttle.check(event, later_s + 1e-6).admitted
            assert not throttle.check(event, later_s - 1e-3).admitted
        elif user not in known and free:
            known.add(user)
            places.append(now_s)
        other = restored("oit", throttle, now_s)
        for each in range(10):
            assert other.check(of_new(each), now_s) == throttle.check(of_new(each), now_s)


def test_apps_have_separate_bounds_of_new_users():
    throttle = THROTTLES["oit"]()
    admitted = [take(throttle, of_new(n, app=app), 0.0).admitted for n in range(3) for app in "ab"]
    assert admitted == [True] * 4 + [False] * 2


def test_a_user_is_new_again_after_a_day_without_a_call():
    throttle = THROTTLES["oit"]()
    for user in (1, 2):
        assert take(throttle, of_new(user), 0.0).admitted
    assert take(throttle, of_new(1), new_users.RETENTION_S - 1).admitted
    now_s = new_users.RETENTION_S + 1
    throttle.forget_idle(now_s)
    assert len(throttle._new_users) == 1
    assert take(throttle, of_new(3), now_s).admitted
    assert take(throttle, of_new(4), now_s).admitted
    assert [throttle.check(of_new(user), now_s).admitted for user in (1, 2)] == [True, False]


def test_a_user_is_new_again_from_the_end_of_the_day():
    users = new_users.NewUsers()
    users.called("t", "app", "ann", 1, 0.0, admitted=True)
    days_end_s = new_users.RETENTION_S
    found = [users.is_new("app", "ann", now_s) for now_s in (days_end_s - 1, days_end_s)]
    assert found == [False, True]


def test_remembered_users_are_bounded(monkeypatch):
    monkeypatch.setattr(new_users, "MAX_USERS", 30)
    known = new_users.NewUsers()
    known.called("t", "small", "ann", 100, 0.0, admitted=True)
    for number in range(100):
        known.called("t", "large", f"u{number}", 1000, 1.0, admitted=True)
        assert len(known) <= 30
    assert not known.is_new("small", "ann", 1.0), "the largest app forgets"
    assert not known.is_new("large", "u99", 1.0)
    assert known.is_new("large", "u0", 1.0)


def test_a_tenant_gains_no_remembered_users_by_more_apps(monkeypatch):
    monkeypatch.setattr(new_users, "MAX_USERS", 40)
    known = new_users.NewUsers()
    for number in range(15):
        known.called("one", "its", f"u{number}", 1000, 0.0, admitted=True)
    for number in range(200):
        known.called("many", f"app{number % 20}", f"u{number}", 1000, 1.0, admitted=True)
    assert not any(known.is_new("its", f"u{number}", 1.0) for number in range(15))
    assert len(known) == 40


def test_a_fixed_limit_of_rpm_counts_a_user_across_apps():
    throttle = THROTTLES["rpm"](limit=2)
    admitted = [take(throttle, arrival(1, app=app), 0.0).admitted for app in "abc"]
    assert admitted == [True, True, False]


@given(arrivals)
def test_rpm_accepts_no_more_than_the_limit_in_any_window(history):
    throttle, accepted, now_s = THROTTLES["rpm"](limit=2), {}, 0.0
    for gap_s, user, _, _ in history:
        now_s += gap_s
        if take(throttle, arrival(user), now_s).admitted:
            accepted.setdefault(user, []).append(now_s)
    for times in accepted.values():
        for first, third in zip(times, times[2:], strict=False):
            assert third - 60 >= first


def edges_s(now_s):
    """Return the edge of a window that begins at ``now_s``, and the times just beside it."""
    edge_s = now_s + 60.0
    return math.nextafter(edge_s, 0.0), edge_s, math.nextafter(edge_s, math.inf)


@pytest.mark.parametrize("name", list(THROTTLES))
@given(history=arrivals)
def test_checking_consumes_nothing_and_snapshots_restore(name, history):
    throttle, now_s = THROTTLES[name](), 0.0
    for gap_s, user, overloaded, under_way in history:
        now_s += gap_s
        event = arrival(user, overloaded, under_way)
        assert throttle.check(event, now_s) == throttle.check(event, now_s)
        throttle.commit(event, throttle.check(event, now_s), now_s)
        other = restored(name, throttle, now_s)
        for later_s in (now_s, *edges_s(now_s)):
            assert other.check(event, later_s) == throttle.check(event, later_s)
            assert other.use(event, later_s) == throttle.use(event, later_s)


def test_the_app_limit_is_checked_second():
    throttle = THROTTLES["oit"]()
    for number in range(5):
        take(throttle, arrival(number, app_rpm=5), float(number))
    decision = take(throttle, arrival(9, app_rpm=5), 6.0)
    assert (decision.admitted, decision.scope, decision.count) == (False, "app", 6)


def test_of_two_limits_the_users_is_named_and_the_later_time_to_retry():
    throttle = THROTTLES["oit"]()
    for number, user in enumerate((9, 9, 9, 1, 1)):
        take(throttle, arrival(user, app_rpm=2), float(number))
    decision = take(throttle, arrival(9, app_rpm=2), 5.0)
    assert (decision.scope, decision.limit, decision.count, decision.certain) == (
        "user",
        3,
        4,
        True,
    )
    assert decision.retry_after_s == 59.0, "the app's calls free its limit last"


@pytest.mark.parametrize("name", ["oit", "rpm"])
def test_idle_keys_are_forgotten(name):
    throttle = THROTTLES[name]()
    empty = throttle.snapshot(0.0)
    take(throttle, arrival(1, user_rpm=1), 0.0)
    throttle.forget_idle(30.0)
    assert throttle.snapshot(30.0) != empty
    throttle.forget_idle(62.0)
    assert throttle.snapshot(62.0) == empty


def test_rpm_has_scopes_and_a_fixed_window():
    both = THROTTLES["rpm"](scope="both")
    for number in range(2):
        assert take(both, arrival(number, app_rpm=2), float(number)).admitted
    assert take(both, arrival(7, app_rpm=2), 3.0).reason == "rpm_app_limit"
    fixed = THROTTLES["rpm"](limit=1, window="fixed")
    assert take(fixed, arrival(0), 59.0).admitted
    rejected = take(fixed, arrival(0), 59.5)
    assert (rejected.admitted, rejected.retry_after_s) == (False, 0.5)
    assert take(fixed, arrival(0), 60.0).admitted, "a new window begins"


@given(histories(gaps_s, 60), st.integers(1, 4))
def test_the_log_counts_like_a_list_and_is_bounded(gaps_s, limit):
    log, times, now_s = SlidingLog(), [], 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        log.record("k", limit, now_s)
        times.append(now_s)
        inside = sum(now_s - 60 < time for time in times)
        assert (log.count("k", now_s) > limit) == (inside > limit)
        assert inside <= log.count_all("k", now_s) <= sum(now_s - time < 61 for time in times)
        assert len(log._times["k"]) <= limit + 1
        other = SlidingLog()
        other.restore(json.loads(json.dumps(log.snapshot(now_s))), now_s)
        assert [w.total for w in other._older.values()] == [w.total for w in log._older.values()]
    log.forget_idle(now_s + 62)
    assert len(log) == len(log._older) == 0


def test_a_flood_is_counted_in_full_though_the_log_is_short():
    throttle = THROTTLES["oit"]()
    counts = [take(throttle, arrival(1), n / 1000).count for n in range(5000)]
    assert counts == [None] * 3 + list(range(4, 5001))
    assert take(throttle, arrival(1), 59.0).count == 5001
    assert take(throttle, arrival(1), 66.0).admitted
    assert len(throttle.snapshot(59.0)["arrivals"]["ages"]["user:app\0u1"]) <= 4


def test_the_overload_detector_has_hysteresis():
    detector = OverloadDetector(Watermarks(2.0, 1.2))
    flags = [detector.update(load * 100, 100) for load in (1.9, 2.0, 1.5, 1.21, 1.2, 1.9)]
    assert flags == [False, True, True, True, False, False]
    assert OverloadDetector().update(1, 0), "demand without capacity"
    assert not OverloadDetector().update(0, 0)
    with pytest.raises(ValueError, match="low <= high"):
        Watermarks(1.0, 2.0)


def test_invalid_options_name_the_allowed_values():
    with pytest.raises(ValueError, match="scope is 'all'; allowed: user, app, both"):
        THROTTLES["rpm"](scope="all")
    with pytest.raises(ValueError, match="window is 'day'; allowed: sliding, fixed"):
        THROTTLES["rpm"](window="day")
    for name in ("oit", "rpm"):
        with pytest.raises(ValueError, match="window_s is 0; allowed: over 0"):
            THROTTLES[name](window_s=0)
    with pytest.raises(ValueError, match="user_rpm is 0"):
        Limits(user_rpm=0)
    with pytest.raises(KeyError, match="unknown throttle 'x'; known: none, rpm, oit"):
        THROTTLES["x"]


@given(arrivals, st.sampled_from(["oit", "rpm"]))
def test_the_remaining_quota_is_what_is_still_admitted(history, name):
    throttle, now_s = THROTTLES[name](), 0.0
    for gap_s, user, _, _ in history:
        now_s += gap_s
        use = throttle.use(arrival(user), now_s)
        assert use.limit == 3
        assert throttle.check(arrival(user), now_s).admitted == (use.used < use.limit)
        take(throttle, arrival(user), now_s)
        use = throttle.use(arrival(user), now_s)
        assert throttle.use(arrival(user), now_s + use.reset_s + 1e-6).used == 0
    assert THROTTLES["none"]().use(arrival(0), 0.0) is None
    assert throttle.use(arrival(0, user_rpm=None), now_s) is None
