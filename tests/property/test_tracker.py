"""The tracker agrees with networkx: a stage is the longest path, whatever the order of operations."""

import contextlib
import json
import random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import make_call

from fairserve.interactions import errors
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.tracking import tracker as tr
from fairserve.interactions.tracking.immunity import ImmunityRule

PROFILE = AppProfile((StageProfile(100, 0, 10),), calls_per_interaction=3, idle_timeout_s=10)


def accept(tracker, call, now_s=0.0):
    attachment = tracker.attach(call, PROFILE, now_s)
    call.stage = attachment.stage
    tracker.accept(call, attachment, now_s)
    return attachment


@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans())
def test_stage_is_the_longest_path(seed, calls, infer):
    """Parents are named, or inferred from time, histories and tools; some calls end in between."""
    rng = random.Random(seed)
    tracker, graph, live, keys = tr.Tracker(infer=infer), nx.DiGraph(), [], []
    for number in range(calls):
        known = list(graph)
        parents = None
        if rng.random() < 0.4:
            parents = tuple(rng.sample(known, rng.randint(0, min(3, len(known)))))
        history = tuple(rng.sample(keys, min(len(keys), rng.randint(0, 2))))
        call = make_call(f"c{number}", run="R", parents=parents)
        call.history, call.tool_results = history[:1], history[1:]
        attachment = accept(tracker, call)
        named = tracker.parent_ids(call, attachment)
        if parents is not None:
            assert named == parents
        elif not infer:
            assert named == ()
        graph.add_node(call.call_id)
        graph.add_edges_from((parent, call.call_id) for parent in named)
        live.append(call)
        while live and rng.random() < 0.45:
            ended = live.pop(rng.randrange(len(live)))
            keys.append(rng.randrange(20))  # answers may be equal
            tracker.finish(ended, "completed", 1, PROFILE, 0.0, continuation_keys=(keys[-1],))
        if rng.random() < 0.1:
            state = json.loads(json.dumps(tracker.snapshot(0.0)))
            tracker = tr.Tracker(infer=infer)
            tracker.restore(state, 0.0)
            assert tracker.snapshot(0.0) == state
        ancestors = graph.subgraph(nx.ancestors(graph, call.call_id) | {call.call_id})
        assert call.stage == 1 + nx.dag_longest_path_length(ancestors)
    assert nx.is_directed_acyclic_graph(graph)


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_by_time_a_call_follows_all_ended_calls(seed, calls):
    """The ancestors are exactly the calls that ended before, and no parent is superfluous."""
    rng = random.Random(seed)
    tracker, graph, live, ended = tr.Tracker(), nx.DiGraph(), [], []
    for number in range(calls):
        call = make_call(f"c{number}", run="R")
        named = tracker.parent_ids(call, accept(tracker, call))
        graph.add_node(call.call_id)
        graph.add_edges_from((parent, call.call_id) for parent in named)
        assert nx.ancestors(graph, call.call_id) == set(ended)
        assert len(nx.transitive_reduction(graph).edges) == len(graph.edges)
        live.append(call)
        while live and rng.random() < 0.5:
            ended.append(live.pop(rng.randrange(len(live))).call_id)
            tracker.finish(make_call(ended[-1], run="R"), "completed", 1, PROFILE, 0.0)


@given(st.integers(0, 2**32))
def test_every_run_ends_once_and_leaves_no_state(seed):
    """Random histories have rejections, cancels and expiries; a snapshot changes nothing."""
    rng = random.Random(seed)
    options = {"reopen_grace_s": rng.choice([0, 5])}
    tracker = tr.Tracker(**options)
    live, now_s, number, open_runs, ends = [], 0.0, 0, set(), []

    def note(*found):
        for end in found:
            if end is not None:
                open_runs.remove(end.interaction_id)  # once, unless a late call reopened it
                ends.append(end)

    for _ in range(150):
        now_s += rng.random()
        action = rng.random()
        if action < 0.5:
            number += 1
            call = make_call(f"c{number}", run=f"R{rng.randrange(8)}", final=rng.random() < 0.1)
            try:
                attachment = tracker.attach(call, PROFILE, now_s)
            except errors.InteractionClosedError:
                continue
            call.stage = attachment.stage
            if rng.random() < 0.2:
                tracker.reject(call, now_s)
            else:
                tracker.accept(call, attachment, now_s)
                open_runs.add(call.interaction_id)
                live.append(call)
        elif action < 0.85 and live:
            call = live.pop(rng.randrange(len(live)))
            outcome = rng.choice(["completed", "completed", "failed", "cancelled", "expired"])
            note(
                tracker.finish(
                    call, outcome, 10, PROFILE, now_s, requested_tools=rng.random() < 0.2
                )
            )
        elif action < 0.9:
            run = f"R{rng.randrange(8)}"
            with contextlib.suppress(errors.InteractionError):
                note(tracker.close(run, cancel=rng.random() < 0.5)[0])
        else:
            note(*tracker.expire(lambda app: PROFILE, now_s))
        if rng.random() < 0.1:
            state = json.loads(json.dumps(tracker.snapshot(now_s)))
            tracker = tr.Tracker(**options)
            tracker.restore(state, now_s)
    for call in live:
        note(tracker.finish(call, "completed", 10, PROFILE, now_s))
    note(*tracker.expire(lambda app: PROFILE, now_s))
    note(*tracker.expire(lambda app: PROFILE, now_s + 11))
    assert (len(tracker), open_runs) == (0, set())
    assert tracker.expire(lambda app: PROFILE, now_s + 30) == []
    assert tracker.snapshot(now_s)["dormant"] == [], "nothing is left but the ids of ended runs"
    if not options["reopen_grace_s"]:
        assert len({end.interaction_id for end in ends}) == len(ends)
    for end in ends:
        assert end.wasted_tokens == (0 if end.state == "complete" else end.tokens)
        assert (end.cause == "") == (end.state == "complete")


def test_without_parents_a_call_follows_ended_calls():
    tracker = tr.Tracker()
    first, second, third = (make_call(f"c{n}", run="R") for n in range(3))
    assert accept(tracker, first).stage == 1
    assert accept(tracker, second).stage == 1, "overlapping calls are parallel"
    tracker.finish(first, "completed", 1, PROFILE, 0.0)
    assert accept(tracker, third).stage == 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"parents": ("x",)}, errors.CycleError, "names itself"),
        ({"parents": ("nobody",)}, errors.UnknownParentError, "'nobody' is not a call"),
        ({"user": "other"}, errors.ForeignInteractionError, "another user"),
        ({"app": "other"}, errors.ForeignInteractionError, "another user"),
        ({"tenant": "other"}, errors.ForeignInteractionError, "another user"),
        ({"call_id": "first"}, errors.DuplicateCallError, "'first' already"),
    ],
)
def test_invalid_calls_change_nothing(change, error, message):
    tracker = tr.Tracker()
    accept(tracker, make_call("first", run="R"))
    before = tracker.snapshot(0.0)
    call_id = change.pop("call_id", "x")
    with pytest.raises(error, match=message):
        tracker.attach(make_call(call_id, run="R", **change), PROFILE, 0.0)
    assert tracker.snapshot(0.0) == before


def test_an_ended_run_is_not_reused():
    tracker = tr.Tracker()
    call = make_call("a", run="R")
    accept(tracker, call)
    tracker.close("R", cancel=False)
    with pytest.raises(errors.InteractionClosedError, match="is closed"):
        tracker.attach(make_call("b", run="R"), PROFILE, 0.0)
    end = tracker.finish(call, "completed", 5, PROFILE, 0.0)
    assert end.state == "complete"
    with pytest.raises(errors.InteractionClosedError, match="has ended"):
        tracker.attach(make_call("b", run="R"), PROFILE, 0.0)
    with pytest.raises(errors.InteractionNotFoundError):
        tracker.close("nobody", cancel=False)


def test_memory_is_bounded():
    limits = tr.TrackerLimits(2, calls_per_run=2, remembered_runs=3, tenant_share=1, user_share=1)
    tracker = tr.Tracker(limits)
    for number in range(2):
        accept(tracker, make_call(f"c{number}", run=f"R{number}"))
    with pytest.raises(errors.TrackerFullError, match="2 interactions"):
        tracker.attach(make_call("x", run="R9"), PROFILE, 0.0)
    accept(tracker, make_call("y", run="R0"))
    with pytest.raises(errors.TrackerFullError, match="2 calls"):
        tracker.attach(make_call("z", run="R0"), PROFILE, 0.0)


def test_immunity_is_bounded_by_calls_and_tokens():
    tracker = tr.Tracker(immunity=ImmunityRule(2.0, "profile"))
    for number in range(6):
        attachment = accept(tracker, make_call(f"c{number}", run="R"))
        assert attachment.immune == (number > 0)
    assert not accept(tracker, make_call("c6", run="R")).immune
    big = make_call("b0", run="B")
    accept(tracker, big)
    assert tracker.attach(make_call("b1", run="B"), PROFILE, 0.0).immune
    most = int(2 * PROFILE.tokens_per_interaction)
    tracker.finish(big, "completed", most, PROFILE, 0.0)
    next_call = make_call("b1", run="B")
    attachment = accept(tracker, next_call)
    assert attachment.immune
    tracker.finish(next_call, "completed", 1, PROFILE, 0.0)
    after = tracker.attach(make_call("b2", run="B"), PROFILE, 0.0)
    assert after.under_way
    assert not after.immune


@given(st.integers(0, 2**32), st.sampled_from([2, 2**16, 2**64]))
def test_a_call_continues_the_latest_call_with_its_key(seed, keys):
    """Compare with a dict, with keys that look like parts of others, or of the numbers beside them."""
    rng = random.Random(seed)
    tracker, latest = tr.Tracker(), {}
    chosen = [
        0,
        1,
        keys - 1,
        *(rng.randrange(keys) << rng.choice([0, 8, 32, 48]) for _ in range(9)),
    ]
    chosen = [key & (2**64 - 1) for key in chosen]
    for number in range(40):
        call = make_call(f"c{number}", run="R")
        call.history = tuple(rng.sample(chosen, 3))
        found = next((latest[key] for key in call.history if key in latest), None)
        attachment = accept(tracker, call)
        assert tracker.get("R")._continued(call) == ([] if found is None else [found])
        assert found is None or attachment.parents
        answers = tuple(rng.choices(chosen, k=rng.randrange(3)))
        tracker.finish(call, "completed", 1, PROFILE, 0.0, continuation_keys=answers)
        latest |= dict.fromkeys(answers, number)
        if rng.random() < 0.05:
            state = json.loads(json.dumps(tracker.snapshot(0.0)))
            tracker = tr.Tracker()
            tracker.restore(state, 0.0)
            assert tracker.snapshot(0.0) == state


def test_a_call_ends_once():
    tracker = tr.Tracker()
    first, second = make_call("a", run="R"), make_call("b", run="R")
    accept(tracker, first)
    accept(tracker, second)
    tracker.finish(first, "completed", 1, PROFILE, 0.0)
    for again in (tracker, tr.Tracker()):
        if again is not tracker:
            again.restore(tracker.snapshot(0.0), 0.0)
        before = again.snapshot(0.0)
        with pytest.raises(KeyError):
            again.finish(first, "completed", 1, PROFILE, 0.0)
        assert again.snapshot(0.0) == before
        assert (again.get("R").live, again.get("R").live_calls) == (1, ["b"])
