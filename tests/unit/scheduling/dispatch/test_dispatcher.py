"""The dispatcher composes throttling, feeding, routing and workers; tested in virtual time."""

import json

import pytest
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.errors import UnknownCallError, UnknownWorkerError
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROFILE = AppProfile(
    stages=(StageProfile(64, 0, 16),), calls_per_interaction=4, idle_timeout_s=30.0
)


def flood(cluster, *, calls=200, user="flooder", output=16, every_s=0.01, start_s=0.0):
    for number in range(calls):
        call = make_call(f"{user}-{number}", user=user, output=output)
        cluster.at(start_s + number * every_s, call)


def with_limits(system, *, user_rpm=20, **more):
    cluster = VirtualCluster(SYSTEMS[system], workers=1, kv_tokens=600, **more)
    cluster.event(ev.AppChanged("app", PROFILE, Limits(user_rpm=user_rpm)))
    return cluster


def test_a_call_completes_its_interaction():
    cluster = VirtualCluster(SYSTEMS["fairserve"])
    cluster.at(0.0, make_call("a"))
    cluster.run(5)
    assert cluster.ended["a"][0] == "completed"
    assert cluster.interactions["run-a"].state == "complete"
    assert cluster.interactions["run-a"].wasted_tokens == 0
    assert cluster.dispatcher.load()[0] == 0


def test_a_flood_is_rejected_under_overload_and_a_run_in_progress_completes():
    cluster = with_limits("fairserve")
    flood(cluster, calls=300)
    for step in range(4):  # a run of the same user that began before the overload
        cluster.at(0.05 + step, make_call(f"run-{step}", user="flooder", run="R", final=step == 3))
    cluster.run(120)
    rejected = set(cluster.refused)
    assert len(rejected) > 100
    assert not any(call_id.startswith("run-") for call_id in rejected)
    assert cluster.interactions["R"].state == "complete"
    for rejection in cluster.refused.values():
        assert rejection.decision.reason == "overloaded_user_limit"
        assert rejection.decision.limit == 20
        assert 0 < rejection.decision.retry_after_s <= 60
        assert not rejection.mid_run


def test_overload_lasts_through_a_restart_until_the_load_is_low():
    cluster = with_limits("fairserve", user_rpm=None)
    flood(cluster, calls=100)
    load = 9.0
    while load >= SYSTEMS["fairserve"].high_watermark:
        cluster.run(cluster.now_s + 0.05)
        demand, capacity = cluster.dispatcher.load()
        load = demand / capacity if cluster.now_s > 1 else 9.0
    assert load > SYSTEMS["fairserve"].low_watermark
    assert cluster.dispatcher.first.overload.overloaded
    state = json.loads(json.dumps(cluster.dispatcher.snapshot(cluster.now_s)))
    restored = Dispatcher(SYSTEMS["fairserve"])
    restored.restore(state, cluster.now_s)
    assert restored.first.overload.overloaded
    cluster.run(60)
    assert not cluster.dispatcher.first.overload.overloaded


def test_the_same_flood_without_overload_is_served_in_full():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=1, kv_tokens=100_000)
    cluster.event(ev.AppChanged("app", PROFILE, Limits(user_rpm=20)))
    flood(cluster, calls=300)
    cluster.run(120)
    assert not cluster.refused
    assert len(cluster.ended) == 300


def test_an_rpm_limit_cuts_a_run_midway():
    cluster = with_limits("rpm-3", user_rpm=None)
    for step in range(5):
        cluster.at(float(step), make_call(f"run-{step}", run="R"))
    cluster.run(10)
    assert sorted(cluster.refused) == ["run-3", "run-4"]
    assert all(rejection.mid_run for rejection in cluster.refused.values())
    cluster.event(ev.InteractionClosed("R", cancel=True))
    end = cluster.interactions["R"]
    assert (end.state, end.cause) == ("aborted", "throttled")
    assert end.wasted_tokens == end.tokens == 3 * (32 + 8)


def test_immunity_ends_at_a_multiple_of_the_profile():
    cluster = with_limits("fairserve", user_rpm=5)
    cluster.event(ev.WorkerReported("w0", foreign_tokens=1_000_000))  # overloaded all the time
    for step in range(40):  # one endless run instead of many new ones
        cluster.at(step * 0.01, make_call(f"run-{step}", user="abuser", run="R"))
    cluster.run(20)
    rejected = [call_id for call_id in cluster.refused if call_id.startswith("run-")]
    served = 40 - len(rejected)
    assert served == 2 * PROFILE.calls_per_interaction
    assert "run-0" not in rejected


def test_a_blocked_user_is_rejected_without_overload():
    cluster = VirtualCluster(SYSTEMS["fairserve"])
    cluster.event(ev.UserChanged("t", "u", blocked=True))
    cluster.at(0.0, make_call("a"))
    cluster.run(1)
    assert cluster.refused["a"].decision.reason == "user_blocked"


def test_the_prefix_determines_the_worker():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=4, kv_tokens=50_000)
    documents = {d: prompt((100 + d, 640)) for d in range(4)}
    for number in range(40):
        tokens = prompt((100 + number % 4, 640), (1000 + number, 16))
        cluster.at(number * 1.0, make_call(f"c{number}", user=f"u{number % 4}", tokens=tokens))
    cluster.run(100)
    for document in documents:
        workers = {
            cluster.admitted[f"c{number}"][0][1] for number in range(40) if number % 4 == document
        }
        assert len(workers) == 1, "one document, one worker"


def test_calls_of_a_lost_worker_are_requeued_and_finish_elsewhere():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=2, kv_tokens=400)
    flood(cluster, calls=60, every_s=0.001)
    cluster.run(0.3)
    cluster.lose("w0")
    cluster.run(60)
    outcomes = [outcome for outcome, _ in cluster.ended.values()]
    assert len(cluster.ended) == 60
    assert outcomes.count("failed") > 0
    assert set(outcomes) == {"completed", "failed"}
    assert cluster.dispatcher.load()[0] == 0
    cluster.join("w0", 400)
    cluster.at(61.0, make_call("late"))
    cluster.run(65)
    assert cluster.ended["late"][0] == "completed"


def test_a_draining_worker_gets_no_new_calls_and_finishes_its_own():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=2)
    flood(cluster, calls=40, every_s=0.01)
    cluster.run(0.1)
    cluster.event(ev.WorkerDraining("w0"))
    cluster.run(30)
    after = [w for times in cluster.admitted.values() for t, w in times if t > 0.1]
    assert after
    assert set(after) == {"w1"}
    assert all(outcome == "completed" for outcome, _ in cluster.ended.values())
    assert len(cluster.ended) == 40


def test_an_undrained_worker_keeps_its_cache_and_calls():
    cluster = VirtualCluster(SYSTEMS["cache-aware"], workers=2, kv_tokens=400)
    pool = cluster.dispatcher.first
    document = prompt((1, 96))
    cluster.arrive(make_call("a", tokens=document))
    assert cluster.admitted["a"][-1][1] == "w0"
    held = pool.worker_table.workers["w0"].demand_tokens
    cluster.event(ev.WorkerDraining("w0"))
    assert cluster.dispatcher.load() == (0, 400)
    cluster.event(ev.WorkerDraining("w0"))
    cluster.event(ev.WorkerUndrained("w0"))
    cluster.event(ev.WorkerUndrained("w0"))
    assert cluster.dispatcher.load() == (held, 800)
    cluster.arrive(make_call("b"))
    cluster.arrive(make_call("c"))
    assert [cluster.admitted[each][-1][1] for each in "bc"] == ["w1", "w0"], "it has one more call"
    cluster.run(20)
    assert cluster.dispatcher.load() == (0, 800)
    cluster.arrive(make_call("d", tokens=document))
    assert cluster.admitted["d"][-1][1] == "w0"
    assert pool.worker_table.workers["w0"].demand_tokens < held


def test_waiting_calls_are_sent_to_an_undrained_worker():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=1)
    cluster.event(ev.WorkerDraining("w0"))
    cluster.arrive(make_call("a"))
    assert not cluster.admitted
    cluster.event(ev.WorkerUndrained("w0"))
    assert cluster.admitted["a"][-1][1] == "w0"
    with pytest.raises(UnknownWorkerError, match="unknown worker 'w9'; joined: w0"):
        cluster.event(ev.WorkerUndrained("w9"))


def test_calls_wait_while_there_is_no_worker():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=0)
    cluster.at(0.0, make_call("a"))
    cluster.run(1)
    assert not cluster.admitted
    cluster.join("w0", 4000)
    cluster.run(5)
    assert cluster.ended["a"][0] == "completed"


def test_cancelling_a_run_stops_its_queued_and_running_calls():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=1, kv_tokens=200)
    for number in range(10):
        cluster.at(0.0, make_call(f"c{number}", run="R", output=50))
    cluster.run(0.2)
    cluster.event(ev.InteractionClosed("R", cancel=True))
    cluster.run(1)
    assert {outcome for outcome, _ in cluster.ended.values()} == {"cancelled"}
    assert len(cluster.ended) == 10
    assert cluster.interactions["R"].state == "cancelled"
    assert cluster.dispatcher.load()[0] == 0


def test_the_feed_window_bounds_the_queue_of_a_worker():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=2, kv_tokens=4000)
    flood(cluster, calls=300, every_s=0.0)
    size = 32 + 16
    most = 0

    def watch(call, outcome):
        nonlocal most
        for worker in cluster.dispatcher.first.worker_table.workers.values():
            most = max(most, worker.waiting_tokens)

    cluster.on_end = watch
    cluster.run(30)
    assert len(cluster.ended) == 300
    assert 0 < most < 0.05 * 4000 + size


@pytest.mark.parametrize(("sink", "state", "wasted"), [(None, "complete", 0), ("z", "expired", 40)])
def test_a_run_ends_after_its_idle_timeout(sink, state, wasted):
    cluster = with_limits("fairserve", user_rpm=None)
    call = make_call("a", run="R")
    cluster.event(ev.InteractionOpened("R", call.tenant, call.app, call.user, sink))
    cluster.at(0.0, call)
    cluster.run(29)
    assert "R" not in cluster.interactions
    cluster.run(35)
    assert cluster.interactions["R"].state == state
    assert cluster.interactions["R"].wasted_tokens == wasted


def test_a_worker_without_reports_is_lost():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=2)
    for worker in ("w0", "w1"):
        cluster.event(ev.WorkerReported(worker))
    cluster.run(10)
    cluster.event(ev.WorkerReported("w1"))
    cluster.run(20)
    assert list(cluster.dispatcher.first.worker_table.serving) == ["w1"]


def test_inapplicable_events_change_nothing():
    dispatcher = Dispatcher(SYSTEMS["fairserve"])
    dispatcher.handle(ev.WorkerJoined("w0", 1000), 0.0)
    before = json.dumps(dispatcher.snapshot(1.0))
    with pytest.raises(UnknownCallError, match="nobody"):
        dispatcher.handle(ev.CallStarted("nobody"), 1.0)
    with pytest.raises(UnknownCallError, match="nobody"):
        dispatcher.handle(ev.TokensDecoded((("nobody", 3),)), 1.0)
    with pytest.raises(UnknownWorkerError, match=r"w9.*joined: w0"):
        dispatcher.handle(ev.WorkerLost("w9"), 1.0)
    with pytest.raises(ValueError, match="w0"):
        dispatcher.handle(ev.WorkerJoined("w0", 1000), 1.0)
    with pytest.raises(ValueError, match="kv_capacity_tokens is 0"):
        dispatcher.handle(ev.WorkerJoined("w1", 0), 1.0)
    assert json.dumps(dispatcher.snapshot(1.0)) == before


def test_unknown_names_list_the_known_ones():
    with pytest.raises(KeyError, match=r"unknown system 'nosuch'; known: .*fairserve"):
        SYSTEMS["nosuch"]
    assert SYSTEMS["rpm-7"].throttle_options == {"limit": 7}
    with pytest.raises(KeyError):
        SYSTEMS["rpm-0"]
    with pytest.raises(ValueError, match="unknown option 'speed'"):
        SYSTEMS["fairserve"].with_options({"speed": 1})
    changed = SYSTEMS["fairserve"].with_options({"local.quantum": 10, "feed_window": 0.1})
    assert changed.local_options == {"quantum": 10}
    assert changed.feed_window == 0.1


def test_a_failed_call_is_retried_on_another_worker():
    """The window of that worker may be full: the call waits for it, and is first in order."""
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=2, kv_tokens=600)
    cluster.dispatcher.handle(ev.WorkerDraining("w1"), 0.0)
    cluster.arrive(make_call("a"))
    assert cluster.admitted["a"][-1][1] == "w0"
    cluster.workers["w0"].end("a")
    cluster.event(ev.CallReturned("a"))
    assert cluster.admitted["a"][-1][1] == "w0", "there is no other one"
    cluster.lose("w1")
    cluster.join("w1", 600)
    cluster.arrive(make_call("b"))  # fills the window of w1
    assert cluster.admitted["b"][-1][1] == "w1"
    cluster.workers["w0"].end("a")
    cluster.event(ev.CallReturned("a"))
    assert len(cluster.admitted["a"]) == 2
    cluster.event(ev.CallStarted("b"))
    assert [worker for _, worker in cluster.admitted["a"]] == ["w0", "w0", "w1"]


@pytest.mark.parametrize("system", ["fairserve", "fs-wi", "central-dlpm", "fcfs"])
def test_a_call_waiting_for_another_worker_lets_others_pass(system):
    """w0 failed two calls of a; w1 is full. Calls of b run on w0, and those of a are first at w1."""
    config = SYSTEMS[system].with_options({"feed_window": 0.003})
    cluster = VirtualCluster(config, workers=1, kv_tokens=20_000)  # two calls fill the window
    for name in ("a1", "a2"):
        cluster.arrive(make_call(name, user="a"))
    cluster.join("w1", 20_000)
    for name in ("x1", "x2"):
        cluster.arrive(make_call(name, user="x"))
    where = {name: sent[-1][1] for name, sent in cluster.admitted.items()}
    assert where == {"a1": "w0", "a2": "w0", "x1": "w1", "x2": "w1"}
    for name in ("a1", "a2"):
        cluster.workers["w0"].end(name)
        cluster.event(ev.CallReturned(name))
    for number in range(4):
        cluster.arrive(make_call(f"b{number}", user="b"))
    assert [name for name, sent in cluster.admitted.items() if sent[-1][1] == "w0"][2:] == [
        "b0",
        "b1",
    ]
    for name in ("b0", "b1", "x1", "x2"):
        cluster.event(ev.CallStarted(name))
    assert [cluster.admitted[name][-1][1] for name in ("a1", "a2")] == ["w1", "w1"]
    assert [cluster.admitted[name][-1][1] for name in ("b2", "b3")] == ["w0", "w0"]
    assert not len(cluster.dispatcher.pools[""].feeder)
