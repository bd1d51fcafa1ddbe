"""Runs of programs accept only their own calls, never end by idling, and survive a restart."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import make_call

from fairserve.interactions import errors
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.tracking.run import RestoredCall, RestoredRun
from fairserve.interactions.tracking.tracker import Tracker, TrackerLimits

PROFILE = AppProfile((StageProfile(100, 0, 10),), calls_per_interaction=3, idle_timeout_s=10)
OWNER = ("t", "app", "u")


def opened(**options):
    tracker = Tracker(**options)
    tracker.open("R", OWNER, 0.0, declared=True)
    return tracker


def begin(tracker, name, now_s=0.0, *, declared=True, **more):
    call = make_call(name, run="R", declared=declared, **more)
    tracker.accept(call, tracker.attach(call, PROFILE, now_s), now_s)
    return call


def end(tracker, call, outcome="completed", now_s=0.0):
    return tracker.finish(call, outcome, 10, PROFILE, now_s)


def through_json(tracker, now_s=0.0):
    state = json.loads(json.dumps(tracker.snapshot(now_s)))
    other = Tracker()
    other.restore(state, now_s)
    return other


@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize("restored", [False, True])
def test_a_declared_run_never_ends_by_idling(calls, restored):
    tracker = opened()
    for number in range(calls):
        assert end(tracker, begin(tracker, f"c{number}")) is None
    if restored:
        tracker = through_json(tracker)
    for now_s in (0, 10, 1000, 10**7):
        assert tracker.expire(lambda app: PROFILE, now_s) == []
    assert tracker.get("R").declared
    begin(tracker, "late", 10**7)
    assert tracker.snapshot(0)["dormant"] == []


def test_a_declared_run_accepts_only_its_own_calls():
    tracker = opened()
    begin(tracker, "own")
    before = tracker.snapshot(0.0)
    with pytest.raises(errors.DeclaredInteractionError, match="'R' is a program's: only its own"):
        begin(tracker, "other", declared=False)
    # Another app does not learn the kind of the run.
    with pytest.raises(errors.ForeignInteractionError):
        begin(tracker, "other", declared=False, user="eve")
    assert tracker.snapshot(0.0) == before


@pytest.mark.parametrize("was", ["never there", "closed", "idled to its end"])
def test_a_call_of_a_program_opens_no_run(was):
    tracker = Tracker()
    if was != "never there":
        tracker.open("R", OWNER, 0.0)
    if was == "closed":
        tracker.close("R", cancel=False)
    tracker.expire(lambda app: PROFILE, 0.0)
    tracker.expire(lambda app: PROFILE, 10.0)
    before = tracker.snapshot(10.0)
    with pytest.raises(errors.InteractionNotFoundError, match="no interaction 'R'"):
        begin(tracker, "a", 10.0)
    assert tracker.snapshot(10.0) == before


def test_a_declared_run_ends_with_its_last_call_and_program():
    tracker = opened()
    assert end(tracker, begin(tracker, "last", final=True)).state == "complete"
    tracker = opened()
    end(tracker, begin(tracker, "a"))
    assert tracker.close("R", cancel=False)[0].state == "complete"


# --- failed runs ----------------------------------------------------------------------------------


def test_a_failed_run_is_aborted():
    tracker = opened()
    end(tracker, begin(tracker, "a"))
    over, live = tracker.close("R", cancel=False, failed=True)
    assert (over.state, over.cause, over.wasted_tokens) == ("aborted", "failed", 10)
    assert live == []


@pytest.mark.parametrize(
    ("trouble", "cause"), [("failed", "failed"), ("expired", "expired"), ("cancelled", "cancelled")]
)
def test_the_failure_of_a_run_is_its_cause(trouble, cause):
    tracker = opened()
    end(tracker, begin(tracker, "a"), trouble)
    over, _ = tracker.close("R", cancel=True, failed=True)
    assert (over.state, over.cause) == ("aborted", cause)


def test_a_failed_throttled_run_counts_as_throttled():
    tracker = opened()
    end(tracker, begin(tracker, "a"))
    tracker.reject(make_call("b", run="R", declared=True), 0.0)
    assert tracker.close("R", cancel=True, failed=True)[0].cause == "throttled"


@pytest.mark.parametrize("outcome", ["completed", "cancelled", "failed"])
@pytest.mark.parametrize("final", [False, True])
def test_running_calls_end_first_and_change_no_outcome(outcome, final):
    tracker = opened()
    first, last = begin(tracker, "a"), begin(tracker, "b", final=final)
    over, live = tracker.close("R", cancel=True, failed=True)
    assert (over, live) == (None, ["a", "b"])
    with pytest.raises(errors.InteractionClosedError):
        begin(tracker, "late")
    assert end(tracker, first, outcome) is None
    over = end(tracker, last, outcome)
    assert (over.state, over.cause, over.calls) == ("aborted", "failed", 2)


# --- restored runs ---------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(0, 30))
def test_a_restored_run_continues_unchanged(seed, calls):
    """Compare stages, parents, tokens and the next calls with a tracker that never stopped."""
    rng = random.Random(seed)
    plain, taken, ended = opened(), Tracker(), []
    for number in range(calls):
        parents = rng.sample([each.call_id for each in ended], min(len(ended), rng.randrange(4)))
        call = begin(plain, f"c{number}", parents=tuple(parents))
        tokens = rng.randrange(100)
        plain.finish(call, "completed", tokens, PROFILE, 0.0)
        ended.append(RestoredCall(call.call_id, tuple(parents), tokens))
    taken.restore_run(RestoredRun("R", OWNER, tuple(ended), declared=True), 5.0)
    was, now = plain.snapshot(0.0)["runs"], taken.snapshot(5.0)["runs"]
    assert was == now
    late = make_call("late", run="R", declared=True)
    assert plain.attach(late, PROFILE, 0.0) == taken.attach(late, PROFILE, 5.0)
    plain_end, taken_end = plain.close("R", cancel=False)[0], taken.close("R", cancel=False)[0]
    assert plain_end == taken_end


def test_unknown_parents_are_omitted():
    tracker = Tracker()
    calls = (
        RestoredCall("a", ("lost", "a"), 1),
        RestoredCall("b", ("a", "later"), 2),
        RestoredCall("a", ("b",), 100),
        RestoredCall("later", ("b",), 4),
    )
    tracker.restore_run(RestoredRun("R", OWNER, calls, declared=True), 0.0)
    run = tracker.get("R")
    assert run.names(range(len(run))) == ("a", "b", "later")
    assert [run.parents(number).tolist() for number in range(3)] == [[], [0], [1]]
    assert (run.tokens, run.live, run.state) == (7, 0, "under_way")


def test_a_run_is_restored_once_within_the_bounds():
    tracker = Tracker(TrackerLimits(live_runs=2, calls_per_run=1))
    one, two = RestoredCall("a", (), 1), RestoredCall("b", (), 1)

    def restore(run, *calls):
        before = tracker.snapshot(0.0)
        try:
            tracker.restore_run(RestoredRun(run, OWNER, calls, declared=True), 0.0)
        except errors.InteractionError:
            assert tracker.snapshot(0.0) == before
            raise

    restore("R", one)
    with pytest.raises(errors.DuplicateCallError, match="'R' exists already"):
        restore("R", one)
    with pytest.raises(errors.TrackerFullError, match="has 2 calls; allowed: 1"):
        restore("S", one, two)
    restore("S")
    with pytest.raises(errors.TrackerFullError, match="2 interactions"):
        restore("T", one)
    tracker.close("R", cancel=False)
    with pytest.raises(errors.InteractionClosedError, match="has ended"):
        restore("R", one)


def test_a_restored_ordinary_run_ends_by_idling():
    tracker = Tracker()
    tracker.restore_run(RestoredRun("R", OWNER, (RestoredCall("a", (), 3),)), 100.0)
    begin(tracker, "b", 101.0, declared=False)
    end(tracker, make_call("b", run="R"), now_s=101.0)
    assert tracker.expire(lambda app: PROFILE, 110.9) == []
    (over,) = tracker.expire(lambda app: PROFILE, 111.0)
    assert (over.state, over.calls, over.tokens) == ("complete", 2, 13)
