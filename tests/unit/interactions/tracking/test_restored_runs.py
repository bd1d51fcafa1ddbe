"""Runs that were open before a restart continue unchanged, with ages in place of times."""

import pytest
from virtual_cluster import make_call

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.tracking.run import RestoredCall, RestoredRun
from fairserve.interactions.tracking.tracker import Tracker

OWNER = ("t", "app", "u")
PROFILE = AppProfile(
    stages=(StageProfile(10, 10, 10),), calls_per_interaction=2, idle_timeout_s=60.0
)
PLAN = RestoredCall("plan", (), 30, "completed", 50.0)
LEFT = RestoredCall("left", ("plan",), 30, "completed", 20.0)
RIGHT = RestoredCall("right", ("plan",), 5, "failed", 40.0)


def profile_of(app):
    return PROFILE


def restored(*calls, now_s=1000.0, **more):
    tracker = Tracker()
    run = RestoredRun("R", OWNER, calls, **{"opened_age_s": 80.0, **more})
    return tracker, tracker.restore_run(run, now_s)


def test_the_next_call_of_a_restored_run_has_stage_and_immunity():
    tracker, end = restored(PLAN, LEFT, RIGHT)
    assert end is None
    call = make_call("next", run="R", parents=("left", "right"), user="u")
    at = tracker.attach(call, PROFILE, 1000.0)
    assert (at.stage, at.under_way, at.immune) == (3, True, True)
    assert (at.calls, at.tokens) == (3, 65)
    spent = RestoredCall("all", ("plan",), 10**6)
    tracker, _ = restored(PLAN, spent)
    assert not tracker.attach(call_after("all"), PROFILE, 1000.0).immune


def call_after(parent):
    return make_call("next", run="R", parents=(parent,), user="u")


def test_idle_time_counts_from_the_last_call_not_the_restart():
    tracker, _ = restored(PLAN, LEFT, RIGHT)
    assert tracker.expire(profile_of, 1039.9) == []
    (end,) = tracker.expire(profile_of, 1040.0)
    assert (end.state, end.calls, end.tokens) == ("complete", 3, 65)


def test_the_age_of_an_empty_run_counts_from_its_opening():
    tracker, _ = restored(opened_age_s=50.0)
    assert tracker.expire(profile_of, 1009.9) == []
    (end,) = tracker.expire(profile_of, 1010.0)
    assert (end.state, end.calls) == ("expired", 0)


@pytest.mark.parametrize(
    ("calls", "refused_age_s", "state", "cause"),
    [
        ((PLAN, LEFT), None, "complete", ""),
        ((PLAN, RIGHT), None, "aborted", "failed"),
        ((PLAN, LEFT), 10.0, "aborted", "throttled"),
        ((PLAN, LEFT), 30.0, "complete", ""),
        ((), 10.0, "expired", "expired"),
    ],
)
def test_the_last_event_determines_the_outcome_of_an_idle_run(calls, refused_age_s, state, cause):
    tracker, _ = restored(*calls, refused_age_s=refused_age_s)
    (end,) = tracker.expire(profile_of, 1100.0)
    assert (end.state, end.cause) == (state, cause)


def test_a_restored_run_still_waits_for_its_sink():
    tracker, end = restored(PLAN, sink="last")
    assert end is None
    (end,) = tracker.expire(profile_of, 1100.0)
    assert end.state == "expired"
    _, end = restored(PLAN, RestoredCall("last", (), 1), sink="last")
    assert (end.state, end.calls) == ("complete", 2)
    tracker, end = restored(PLAN, RestoredCall("last", (), 1, "failed"), sink="last")
    assert (end.state, len(tracker)) == ("aborted", 0)


def test_a_restored_closed_run_ends_immediately():
    tracker, end = restored(PLAN, RIGHT, closing="complete")
    assert (end.state, end.calls, len(tracker)) == ("complete", 2, 0)
    _, end = restored(PLAN, RIGHT, closing="cancelled")
    assert (end.state, end.cause) == ("cancelled", "failed")
