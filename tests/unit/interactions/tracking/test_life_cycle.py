"""Runs end by their client, by a declared sink, or by idling; late calls may reopen them."""

import json

import pytest
from virtual_cluster import make_call

from fairserve.interactions import errors
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.tracking import tracker
from fairserve.interactions.tracking.run import RestoredRun
from fairserve.interactions.tracking.tracker import Tracker, TrackerLimits

IDLE_S = 10
PROFILE = AppProfile((StageProfile(100, 0, 10),), calls_per_interaction=3, idle_timeout_s=IDLE_S)
OWNER = ("tenant", "app", "ann")


def profile_of(app):
    return PROFILE


class Life:
    """One run, ``R``, whose calls begin and end."""

    def __init__(self, **options):
        self.tracker = Tracker(**options)

    def begin(self, name="a", now_s=0.0, **more):
        call = make_call(name, run="R", **more)
        self.tracker.accept(call, self.tracker.attach(call, PROFILE, now_s), now_s)
        return call

    def end(self, call, outcome="completed", now_s=0.0, **more):
        return self.tracker.finish(call, outcome, 10, PROFILE, now_s, **more)

    def call(self, name="a", outcome="completed", now_s=0.0, **more):
        return self.end(self.begin(name, now_s), outcome, now_s, **more)

    def expire(self, now_s):
        return self.tracker.expire(profile_of, now_s)


def summary(end):
    return end.state, end.cause, end.wasted_tokens


@pytest.mark.parametrize(
    ("outcome", "requested_tools", "expected"),
    [
        ("completed", False, ("complete", "", 0)),
        ("completed", True, ("expired", "expired", 10)),
        ("failed", False, ("aborted", "failed", 10)),
        ("expired", False, ("aborted", "expired", 10)),
        ("cancelled", False, ("aborted", "cancelled", 10)),
    ],
)
def test_an_idle_run_ends_with_the_outcome_of_its_last_call(outcome, requested_tools, expected):
    life = Life()
    assert life.call(outcome=outcome, requested_tools=requested_tools) is None
    assert life.expire(IDLE_S - 0.1) == []
    (end,) = life.expire(IDLE_S)
    assert summary(end) == expected
    assert life.expire(10 * IDLE_S) == []


def test_one_tick_ends_some_of_many_idle_runs_and_the_next_ones_the_others(monkeypatch):
    monkeypatch.setattr(tracker, "ENDED_AT_ONCE", 10)
    life = Life()
    for number in range(25):
        life.tracker.open(f"run-{number}", OWNER, number / 100)
    ends = [[end.interaction_id for end in life.expire(1000.0)] for _ in range(4)]
    assert [len(each) for each in ends] == [10, 10, 5, 0]
    assert [run for tick in ends for run in tick] == [f"run-{number}" for number in range(25)]


def test_one_tick_visits_some_of_many_runs_that_are_not_idle():
    life, visited = Life(), []
    for number in range(1000):
        run = f"run-{number}"
        call = make_call(f"c-{number}", run=run)
        life.tracker.accept(call, life.tracker.attach(call, PROFILE, 0.0), 0.0)
        life.end(call, now_s=IDLE_S - 1)

    def profile_of(app):
        visited.append(app)
        return PROFILE

    for _ in range(4):
        before = len(visited)
        assert life.tracker.expire(profile_of, IDLE_S) == []
        assert len(visited) - before <= 256
    assert len(life.expire(2 * IDLE_S)) == 256


def test_a_run_whose_waiting_call_was_rejected_ends_as_throttled_after_its_idle_time():
    life = Life()
    life.call("a")
    life.tracker.withdraw(life.begin("b", now_s=1.0), PROFILE, 4.0)
    assert life.expire(4.0 + IDLE_S - 0.1) == []
    (end,) = life.expire(4.0 + IDLE_S)
    assert summary(end) == ("aborted", "throttled", 10)


def test_received_tool_results_are_not_missing():
    life = Life()
    life.call("a", requested_tools=True)
    life.call("b")
    assert summary(life.expire(IDLE_S)[0]) == ("complete", "", 0)


def test_an_idle_throttled_run_is_aborted():
    life = Life()
    life.call("a")
    assert life.tracker.reject(make_call("b", run="R"), 0.0)
    assert summary(life.expire(IDLE_S)[0]) == ("aborted", "throttled", 10)


def test_an_empty_run_expires():
    life = Life()
    life.tracker.open("R", OWNER, 0.0)
    assert life.expire(0.0) == []
    assert summary(life.expire(IDLE_S)[0]) == ("expired", "expired", 0)


def test_a_declared_sink_completes_a_run_and_its_absence_expires_it():
    for reached in (True, False):
        life = Life()
        call = make_call("a", run="R")
        life.tracker.open("R", (call.tenant, call.app, call.user), 0.0, sink="last")
        life.call("a")
        if reached:
            assert summary(life.call("last")) == ("complete", "", 0)
        else:
            assert summary(life.expire(IDLE_S)[0]) == ("expired", "expired", 10)
        assert len(life.tracker) == 0


def test_a_sink_waits_for_parallel_calls():
    life = Life()
    beside = life.begin("beside")
    assert life.end(life.begin("last", final=True)) is None
    with pytest.raises(errors.InteractionClosedError, match="is closed"):
        life.begin("late")
    assert life.end(beside).state == "complete"


def test_a_late_call_reopens_an_idle_run():
    life = Life(reopen_grace_s=100)
    life.call("a")
    assert life.expire(IDLE_S)[0].calls == 1
    late = make_call("b", run="R")
    before = life.tracker.snapshot(IDLE_S)
    attachment = life.tracker.attach(late, PROFILE, IDLE_S + 99)
    assert (attachment.stage, attachment.under_way, attachment.immune) == (2, True, True)
    assert life.tracker.snapshot(IDLE_S) == before, "attaching changes nothing"
    life.tracker.accept(late, attachment, IDLE_S + 99)
    assert (len(life.tracker), life.tracker.snapshot(0)["dormant"]) == (1, [])
    with pytest.raises(errors.DuplicateCallError):
        life.begin("a", IDLE_S + 99)
    life.end(late, now_s=IDLE_S + 99)
    (end,) = life.expire(2 * IDLE_S + 99)
    assert (end.calls, end.tokens) == (2, 20), "the later end has it all"


def test_only_its_owner_reopens_a_run():
    life = Life()
    life.call("a")
    life.expire(IDLE_S)
    with pytest.raises(errors.ForeignInteractionError):
        life.begin("b", IDLE_S, user="eve")
    assert len(life.tracker) == 0


@pytest.mark.parametrize(
    "how", ["closed", "cancelled", "final", "too late", "no grace", "too many"]
)
def test_runs_that_ended_otherwise_stay_ended(how):
    limits = TrackerLimits(dormant_runs=1 if how == "too many" else 10)
    life = Life(limits=limits, reopen_grace_s=0 if how == "no grace" else 100)
    if how == "final":
        life.end(life.begin("a", final=True))
    else:
        life.call("a")
    if how in ("closed", "cancelled"):
        life.tracker.close("R", cancel=how == "cancelled")
    if how == "too many":
        other = make_call("x", run="other")
        life.tracker.accept(other, life.tracker.attach(other, PROFILE, 0.0), 0.0)
        life.tracker.finish(other, "completed", 1, PROFILE, 1.0)
    life.expire(IDLE_S + 1)
    now_s = IDLE_S + (102 if how == "too late" else 1)
    with pytest.raises(errors.InteractionClosedError, match="has ended"):
        life.begin("late", now_s)
    with pytest.raises(errors.InteractionClosedError):
        life.tracker.open("R", OWNER, now_s)


def test_a_snapshot_keeps_runs_that_may_be_reopened():
    life = Life(reopen_grace_s=100)
    life.call("a")
    life.expire(IDLE_S)
    state = json.loads(json.dumps(life.tracker.snapshot(50)))
    life.tracker = Tracker(reopen_grace_s=100)
    life.tracker.restore(state, 1000)
    with pytest.raises(errors.InteractionClosedError):
        life.begin("late", 1000 + 60)
    assert life.call("b", now_s=1000 + 59) is None
    assert len(life.tracker) == 1


LIMITS = TrackerLimits(live_runs=16, tenant_share=1 / 4, user_share=1 / 8)


def opened(tracker, number, tenant="t", user="u", now_s=0.0, app="app"):
    """Return how many of ``number`` runs could be opened, and the reason of the first rejection."""
    for done in range(number):
        try:
            run = f"{tenant}-{app}-{user}-{len(tracker)}-{done}"
            tracker.open(run, (tenant, app, user), now_s)
        except errors.InteractionError as error:
            return done, type(error)
    return number, None


def live(tracker, tenant, app="app"):
    """Return the users of an app's live runs, in order."""
    owners = [tuple(plain["owner"]) for plain in tracker.snapshot(0.0)["runs"]]
    return sorted(owner[2] for owner in owners if owner[:2] == (tenant, app))


def test_a_full_share_goes_to_who_has_less():
    tracker = Tracker(LIMITS)
    assert opened(tracker, 9) == (2, errors.OpenInteractionsError)
    assert opened(tracker, 9, user="v") == (2, errors.OpenInteractionsError)
    assert opened(tracker, 9, user="w") == (1, errors.OpenInteractionsError), "its tenant has four"
    assert live(tracker, "t") == ["u", "v", "v", "w"], "an equal share, the first in order loses"
    assert opened(tracker, 9, app="quiet") == (2, errors.OpenInteractionsError)
    assert live(tracker, "t", "quiet") == ["u", "u"]
    for tenant in "abc":
        for user in "uv":
            assert opened(tracker, 2, tenant, user) == (2, None)
    assert opened(tracker, 9, "d") == (2, errors.OpenInteractionsError)
    for tenant in "efghijklmno":
        assert opened(tracker, 1, tenant) == (1, None)
    assert len(tracker) == 16
    assert all(len(live(tracker, tenant)) == 1 for tenant in "efghijklmno")
    assert opened(tracker, 1, "e", user="v") == (0, errors.TrackerFullError), "all have their share"
    call = make_call("c", tenant="e", user="v", run="new")
    with pytest.raises(errors.TrackerFullError, match="16 interactions are live"):
        tracker.attach(call, PROFILE, 0.0)


def test_a_run_that_makes_room_ends_by_idling_and_can_be_reopened():
    tracker = Tracker(TrackerLimits(live_runs=4, tenant_share=1, user_share=1))
    calls = {}
    for number, name in enumerate(("oldest", "newer", "busy")):
        call = calls[name] = make_call(f"{name}/c", tenant="t", user="u", run=name)
        tracker.accept(call, tracker.attach(call, PROFILE, number), number)
    for number, name in enumerate(("oldest", "newer")):
        tracker.finish(calls[name], "completed", 10, PROFILE, 10 + number)
    tracker.open("empty", ("t", "app", "u"), 20.0)
    restored = Tracker(TrackerLimits(live_runs=4, tenant_share=1, user_share=1))
    restored.restore(json.loads(json.dumps(tracker.snapshot(20.0))), 20.0)
    for each in (tracker, restored):
        ends = [each.open(f"other {n}", ("other", "app", "u"), 21.0) for n in range(2)]
        assert [(end.interaction_id, end.state, end.calls) for end in ends] == [
            ("empty", "expired", 0),
            ("oldest", "complete", 1),
        ]
        again = make_call("oldest/d", tenant="t", user="u", run="oldest")
        with pytest.raises(errors.TrackerFullError):
            each.attach(again, PROFILE, 22.0)
        each.close("other 0", cancel=False)
        attachment = each.attach(again, PROFILE, 23.0)
        assert (attachment.stage, each.accept(again, attachment, 23.0)) == (2, (True, None))


def test_a_share_is_released_by_ended_runs_and_restored():
    tracker = Tracker(LIMITS)
    for name in "ab":
        tracker.open(name, ("t", "app", "u"), 0.0)
    restored = Tracker(LIMITS)
    restored.restore(json.loads(json.dumps(tracker.snapshot(5.0))), 5.0)
    for each in (tracker, restored):
        assert opened(each, 1) == (0, errors.OpenInteractionsError)
        each.close("a", cancel=False)
        assert opened(each, 2) == (1, errors.OpenInteractionsError)
        each.expire(lambda app: PROFILE, 1000.0)
        each.expire(lambda app: PROFILE, 1000.0 + IDLE_S)
        assert len(each) == 0
        assert opened(each, 2) == (2, None)


def test_programs_are_restored_even_beyond_the_share():
    tracker = Tracker(LIMITS)
    assert opened(tracker, 2) == (2, None)
    tracker.restore_run(RestoredRun("P", ("t", "app", "u"), declared=True), 0.0)
    assert len(tracker) == 3


def test_an_open_run_without_a_call_expires_early():
    persistent = AppProfile((StageProfile(100, 0, 10),), idle_timeout_s=3600.0)
    tracker = Tracker(TrackerLimits(empty_idle_s=60.0))
    tracker.open("empty", OWNER, 0.0)
    tracker.open("used", OWNER, 0.0)
    call = make_call("a", tenant="tenant", user="ann", run="used")
    tracker.accept(call, tracker.attach(call, persistent, 0.0), 0.0)
    tracker.finish(call, "completed", 10, persistent, 0.0)
    ended = []
    for now_s in (0.0, 59.9, 60.0, 3599.0):
        ended += [
            (end.interaction_id, now_s) for end in tracker.expire(lambda app: persistent, now_s)
        ]
    assert ended == [("empty", 60.0)]


@pytest.mark.parametrize(
    "options", [{"tenant_share": 0}, {"user_share": 1.5}, {"empty_idle_s": 0.0}]
)
def test_invalid_limits_name_the_allowed_range(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is .*; allowed: over 0"):
        TrackerLimits(**options)


@pytest.mark.parametrize("options", [{"reopen_grace_s": -1}, {"reopen_grace_s": float("nan")}])
def test_invalid_options_are_rejected(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        Tracker(**options)


def test_a_tick_ends_a_share_of_many_idle_runs_and_the_next_ones_the_rest():
    tracker = Tracker(reopen_grace_s=5.0)
    for number in range(600):
        tracker.open(f"run{number}", OWNER, number / 1000)
    ends = [tracker.expire(profile_of, 100.0 + tick) for tick in range(4)]
    assert [len(each) for each in ends] == [256, 256, 88, 0]
    assert [end.interaction_id for each in ends for end in each] == [f"run{n}" for n in range(600)]


def test_a_closed_run_leaves_no_time_out():
    """An app's time-out may be a week, and its clients may close any number of runs until then."""
    life = Life()
    for now_s in range(100):
        call = life.begin(now_s=now_s)
        life.expire(now_s)
        life.end(call, now_s=now_s)
        life.tracker.close("R", cancel=False)
        life.tracker._ended.pop("R")  # so that its id can be used again
    assert len(life.tracker._expiry) == 0
    life.begin(now_s=200.0)
    assert len(life.tracker._expiry) == 1
