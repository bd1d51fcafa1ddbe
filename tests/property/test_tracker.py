"""The tracker against networkx: a stage is the longest path, whatever the order of operations."""

import json
import random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_cluster import make_call

from fairserve.interactions import tracker as tr
from fairserve.interactions.profile import AppProfile, StageProfile

PROFILE = AppProfile((StageProfile(100, 0, 10),), calls_per_interaction=3, idle_timeout_s=10)


def accept(tracker, call, now_s=0.0):
    attachment = tracker.attach(call, PROFILE)
    call.stage = attachment.stage
    tracker.accept(call, now_s)
    return attachment


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_stage_is_the_longest_path(seed, calls):
    rng = random.Random(seed)
    tracker, graph = tr.Tracker(), nx.DiGraph()
    for number in range(calls):
        known = list(graph)
        parents = tuple(rng.sample(known, rng.randint(0, min(3, len(known)))))
        call = make_call(f"c{number}", run="R", parents=parents)
        accept(tracker, call)
        graph.add_node(call.call_id)
        graph.add_edges_from((parent, call.call_id) for parent in parents)
        if rng.random() < 0.5:
            tracker.finish(call, "completed", 1, PROFILE, 0.0)
        ancestors = graph.subgraph(nx.ancestors(graph, call.call_id) | {call.call_id})
        assert call.stage == 1 + nx.dag_longest_path_length(ancestors)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_every_run_ends_once_and_leaves_nothing(seed):
    """Random lives with refusals, cancels and expiries; a snapshot at any point changes nothing."""
    rng = random.Random(seed)
    tracker = tr.Tracker()
    live, ended, now_s, number = [], [], 0.0, 0
    for _ in range(150):
        now_s += rng.random()
        action = rng.random()
        if action < 0.5:
            number += 1
            call = make_call(f"c{number}", run=f"R{rng.randrange(8)}", final=rng.random() < 0.1)
            try:
                attachment = tracker.attach(call, PROFILE)
            except tr.InteractionClosedError:
                continue
            call.stage = attachment.stage
            if rng.random() < 0.2:
                tracker.refuse(call, now_s)
            else:
                tracker.accept(call, now_s)
                live.append(call)
        elif action < 0.85 and live:
            call = live.pop(rng.randrange(len(live)))
            outcome = rng.choice(["completed", "completed", "failed", "cancelled", "expired"])
            end = tracker.finish(call, outcome, 10, PROFILE, now_s)
            ended += [end] if end else []
        elif action < 0.9:
            run = f"R{rng.randrange(8)}"
            try:
                end, _ = tracker.close(run, cancel=rng.random() < 0.5)
                ended += [end] if end else []
            except tr.InteractionError:
                pass
        else:
            ended += tracker.expire(lambda app: PROFILE, now_s)
        if rng.random() < 0.1:
            state = json.loads(json.dumps(tracker.snapshot(now_s)))
            tracker = tr.Tracker()
            tracker.restore(state, now_s)
    for call in live:
        end = tracker.finish(call, "completed", 10, PROFILE, now_s)
        ended += [end] if end else []
    ended += tracker.expire(lambda app: PROFILE, now_s)
    ended += tracker.expire(lambda app: PROFILE, now_s + 11)
    assert len(tracker) == 0
    ids = [end.interaction_id for end in ended]
    assert len(ids) == len(set(ids))
    for end in ended:
        assert end.wasted_tokens == (0 if end.state == "complete" else end.tokens)
        assert (end.cause == "") == (end.state == "complete")


def test_without_parents_a_call_follows_what_has_ended():
    tracker = tr.Tracker()
    first, second, third = (make_call(f"c{n}", run="R") for n in range(3))
    assert accept(tracker, first).stage == 1
    assert accept(tracker, second).stage == 1, "overlapping calls are parallel"
    tracker.finish(first, "completed", 1, PROFILE, 0.0)
    assert accept(tracker, third).stage == 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"parents": ("x",)}, tr.CycleError, "names itself"),
        ({"parents": ("nobody",)}, tr.UnknownParentError, "'nobody' is not a call"),
        ({"user": "other"}, tr.ForeignInteractionError, "another user"),
        ({"app": "other"}, tr.ForeignInteractionError, "another user"),
        ({"tenant": "other"}, tr.ForeignInteractionError, "another user"),
        ({"call_id": "first"}, tr.DuplicateCallError, "'first' already"),
    ],
)
def test_bad_calls_change_nothing(change, error, message):
    tracker = tr.Tracker()
    accept(tracker, make_call("first", run="R"))
    before = tracker.snapshot(0.0)
    call_id = change.pop("call_id", "x")
    with pytest.raises(error, match=message):
        tracker.attach(make_call(call_id, run="R", **change), PROFILE)
    assert tracker.snapshot(0.0) == before


def test_an_ended_run_is_not_reused():
    tracker = tr.Tracker()
    call = make_call("a", run="R")
    accept(tracker, call)
    tracker.close("R", cancel=False)
    with pytest.raises(tr.InteractionClosedError, match="is closed"):
        tracker.attach(make_call("b", run="R"), PROFILE)
    end = tracker.finish(call, "completed", 5, PROFILE, 0.0)
    assert end.state == "complete"
    with pytest.raises(tr.InteractionClosedError, match="has ended"):
        tracker.attach(make_call("b", run="R"), PROFILE)
    with pytest.raises(tr.InteractionNotFoundError):
        tracker.close("nobody", cancel=False)


def test_memory_is_bounded():
    limits = tr.TrackerLimits(live_runs=2, calls_per_run=2, remembered_runs=3)
    tracker = tr.Tracker(limits)
    for number in range(2):
        accept(tracker, make_call(f"c{number}", run=f"R{number}"))
    with pytest.raises(tr.TrackerFullError, match="2 interactions"):
        tracker.attach(make_call("x", run="R9"), PROFILE)
    accept(tracker, make_call("y", run="R0"))
    with pytest.raises(tr.TrackerFullError, match="2 calls"):
        tracker.attach(make_call("z", run="R0"), PROFILE)


def test_immunity_is_bounded_by_calls_and_tokens():
    tracker = tr.Tracker(immunity_factor=2)
    for number in range(6):
        attachment = accept(tracker, make_call(f"c{number}", run="R"))
        assert attachment.immune == (number > 0)
    assert not accept(tracker, make_call("c6", run="R")).immune
    big = make_call("b0", run="B")
    accept(tracker, big)
    assert tracker.attach(make_call("b1", run="B"), PROFILE).immune
    tracker.finish(big, "completed", 10_000, PROFILE, 0.0)
    after = tracker.attach(make_call("b1", run="B"), PROFILE)
    assert after.under_way
    assert not after.immune
