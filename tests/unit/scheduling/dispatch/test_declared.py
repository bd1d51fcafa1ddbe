"""Test the calls of programs in the dispatcher: expected outputs, failed runs, restored runs."""

import json

import pytest
from virtual_cluster import VirtualCluster, make_call

from fairserve.interactions.errors import DeclaredInteractionError, InteractionNotFoundError
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

OWNER = ("t", "app", "u")
PROFILE = AppProfile((StageProfile(32, 0, 20),), idle_timeout_s=5.0)
DONE = (ev.RestoredCall("before", (), 40), ev.RestoredCall("then", ("before",), 2))


def made(**options):
    cluster = VirtualCluster(SYSTEMS["fairserve"], **options)
    cluster.event(ev.AppChanged("app", PROFILE, Limits()))
    return cluster


def own(name, **more):
    return make_call(name, run="R", declared=True, **more)


@pytest.mark.parametrize(
    ("declared", "samples", "most", "expected"),
    [(0, 1, 100, 20), (7, 1, 100, 7), (7, 3, 100, 21), (70, 2, 30, 60), (0, 1, 8, 8)],
)
def test_the_declared_output_overrides_the_profile(declared, samples, most, expected):
    cluster = made()
    call = make_call("a", output=most, samples=samples, declared_output_tokens=declared)
    cluster.arrive(call)
    assert call.expected_output_tokens == expected


def test_a_declared_run_runs_to_its_end():
    cluster = made()
    cluster.event(ev.InteractionOpened("R", *OWNER, declared=True))
    with pytest.raises(DeclaredInteractionError):
        cluster.arrive(make_call("other", run="R"))
    cluster.arrive(own("a"))
    cluster.run(100.0)
    assert (list(cluster.ended), cluster.interactions) == (["a"], {})
    cluster.arrive(own("b", final=True))
    cluster.run(200.0)
    assert cluster.interactions["R"].state == "complete"
    with pytest.raises(InteractionNotFoundError):
        cluster.arrive(own("c"))


@pytest.mark.parametrize("cancel", [False, True])
def test_a_failed_run_ends_its_calls(cancel):
    cluster = made(workers=1, kv_tokens=60)
    cluster.event(ev.InteractionOpened("R", *OWNER, declared=True))
    for number in range(4):  # one call runs, three wait
        cluster.arrive(own(f"c{number}"))
    cluster.run(0.05)
    cluster.event(ev.InteractionClosed("R", cancel=cancel, failed=True))
    cluster.run(10.0)
    outcomes = {outcome for outcome, _ in cluster.ended.values()}
    assert outcomes == ({"cancelled"} if cancel else {"completed"})
    over = cluster.interactions["R"]
    assert (over.state, over.cause, over.calls) == ("aborted", "failed", 4)
    assert not cluster.dispatcher.first.feeder._active_runs.interactions


# --- restored runs --------------------------------------------------------------------------------


def in_progress(cluster):
    return {
        model: set(pool.feeder._active_runs.interactions)
        for model, pool in cluster.dispatcher.pools.items()
    }


def restore(cluster, *calls):
    cluster.event(ev.InteractionRestored(ev.RestoredRun("R", OWNER, calls, declared=True)))


def test_a_restored_run_continues_where_it_was():
    cluster = made()
    restore(cluster, *DONE)
    cluster.arrive(own("next", parents=("then",)))
    assert cluster.calls["next"].stage == 3
    cluster.run(10.0)
    cluster.event(ev.InteractionClosed("R"))
    over = cluster.interactions["R"]
    assert (over.state, over.calls, over.tokens) == ("complete", 3, 42 + 32 + 8)
    assert in_progress(cluster) == {"": set()}


@pytest.mark.parametrize("when", ["before any model", "between two", "after them"])
def test_calls_of_a_restored_run_have_priority_at_all_models(when):
    cluster = made(workers=0)
    if when == "before any model":
        restore(cluster, *DONE)
    cluster.join("a0", 600, "a")
    if when == "between two":
        restore(cluster, *DONE)
    cluster.join("b0", 600, "b")
    if when == "after them":
        restore(cluster, *DONE)
    assert in_progress(cluster) == {"a": {"R"}, "b": {"R"}}
    for number in range(60):
        cluster.at(0.0, make_call(f"other-{number}", pool="b"))
    cluster.run(0.01)
    cluster.arrive(own("next", pool="b"))
    cluster.run(60.0)
    waited = sum(at > cluster.started_s["next"] for at in cluster.started_s.values())
    assert waited > 30, "it stood behind its user's other calls"
    cluster.event(ev.InteractionClosed("R"))
    assert in_progress(cluster) == {"a": set(), "b": set()}


def test_a_run_without_calls_is_not_active():
    cluster = made()
    restore(cluster)
    cluster.join("b0", 600, "b")
    assert in_progress(cluster) == {"": set(), "b": set()}


def test_a_run_that_ends_before_its_first_call_leaves_nothing():
    cluster = made(workers=0)
    restore(cluster, *DONE)
    cluster.event(ev.InteractionClosed("R"))
    cluster.join("a0", 600, "a")
    assert in_progress(cluster) == {"a": set()}


def test_a_snapshot_keeps_a_declared_run():
    cluster = made()
    restore(cluster, *DONE)
    state = json.loads(json.dumps(cluster.dispatcher.snapshot(0.0)))
    other = Dispatcher(SYSTEMS["fairserve"], seed=7)
    other.restore(state, 0.0)
    assert json.loads(json.dumps(other.snapshot(0.0))) == state
    assert other.tracker.get("R").declared
    assert other.first.feeder._active_runs.interactions == ["R"]
