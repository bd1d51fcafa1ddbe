"""Test several models behind one dispatcher: their separate and their shared state."""

import json

import pytest
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.dispatch.switch import switch_system
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROFILE = AppProfile(stages=(StageProfile(32, 0, 8),), calls_per_interaction=1, idle_timeout_s=30.0)


def two_models(system="fairserve", *, kv_tokens=600, **options):
    """Return a cluster whose ``a0`` and ``a1`` serve model a, and ``b0`` model b."""
    cluster = VirtualCluster(SYSTEMS[system].with_options(options), workers=0)
    for worker in ("a0", "a1", "b0"):
        cluster.join(worker, kv_tokens, worker[0])
    cluster.event(ev.AppChanged("app", PROFILE, Limits()))
    return cluster


def call_of(model, number, *, user="u", **more):
    return make_call(f"{model}-{user}-{number}", user=user, pool=model, **more)


def flood(cluster, model, user, calls):
    for number in range(calls):
        cluster.at(0.0, call_of(model, number, user=user))


def where(cluster, call_id):
    return cluster.admitted[call_id][-1][1]


def snapshot(dispatcher, now_s=0.0):
    return json.loads(json.dumps(dispatcher.snapshot(now_s)))


@pytest.mark.parametrize("system", ["fairserve", "d2lpm", "preble", "central-dlpm", "vtc", "fcfs"])
def test_a_call_is_sent_to_a_worker_of_its_model(system):
    cluster = two_models(system)
    for number in range(30):
        cluster.at(0.01 * number, call_of("ab"[number % 3 == 0], number))
    cluster.run(60)
    assert len(cluster.ended) == 30
    assert all(where(cluster, call_id)[0] == call_id[0] for call_id in cluster.ended)


def test_a_full_queue_of_one_model_does_not_block_another():
    cluster = two_models()
    flood(cluster, "a", "u", 300)
    cluster.at(0.1, call_of("b", 0))
    cluster.run(0.3)
    assert len(cluster.dispatcher.pools["a"].feeder) > 200
    assert "b-u-0" in cluster.started_s


def test_overload_is_separate_for_each_model():
    """The flooded model rejects by its limit, the other nothing, though they share the window."""
    cluster = two_models(kv_tokens=300)
    cluster.event(ev.AppChanged("app", PROFILE, Limits(user_rpm=40)))
    flood(cluster, "a", "u", 100)
    cluster.run(0.01)
    assert cluster.refused
    assert cluster.dispatcher.pools["a"].overload.overloaded
    assert not cluster.dispatcher.pools["b"].overload.overloaded
    before = len(cluster.refused)
    cluster.arrive(call_of("b", 0))
    assert len(cluster.refused) == before
    cluster.arrive(call_of("a", 1000))
    assert len(cluster.refused) == before + 1


def test_a_limit_counts_the_calls_of_all_models():
    cluster = two_models("rpm-4")
    for number in range(4):
        cluster.arrive(call_of("ab"[number % 2], number))
    assert not cluster.refused
    cluster.arrive(call_of("b", 9))
    assert list(cluster.refused) == ["b-u-9"]


def test_a_run_may_use_several_models():
    """Its stages continue; active at one model, it has priority in the queue of the other."""
    cluster = two_models()
    cluster.at(0.0, call_of("a", 0, run="R"))
    cluster.run(2.0)
    flood(cluster, "b", "u", 60)
    cluster.run(2.1)
    cluster.arrive(call_of("b", 100, run="R", parents=("a-u-0",), final=True))
    assert cluster.calls["b-u-100"].stage == 2
    cluster.run(60)
    assert cluster.interactions["R"].state == "complete"
    waited = sum(at > cluster.started_s["b-u-100"] for at in cluster.started_s.values())
    assert waited > 30, "it stood behind its user's other calls"
    assert not any(
        pool.feeder._active_runs.interactions for pool in cluster.dispatcher.pools.values()
    )


def test_contended_service_at_one_model_counts_at_the_other():
    """c competes with e for a and with d for b. d gets b until it has c's total service."""
    cluster = two_models()
    for user in "ce":
        flood(cluster, "a", user, 400)
    flood(cluster, "b", "c", 200)
    flood(cluster, "b", "d", 200)
    cluster.run(4.0)
    assert len(cluster.dispatcher.pools["b"].feeder) > 100, "both must still wait"
    done = [call_id[:3] for call_id in cluster.started_s]
    assert done.count("b-d") > 20
    # a has twice the workers of b: with half of a, c can never be behind
    assert done.count("b-c") <= 4
    assert done.count("a-c") == pytest.approx(done.count("a-e"), abs=3)


def test_a_newcomer_is_lifted_to_received_not_reserved_service():
    """c has 40 calls at model a that have not been served, and waits at b, where d begins."""
    cluster = two_models(kv_tokens=100_000)
    handle = cluster.dispatcher.handle
    pools = cluster.dispatcher.pools
    for user in ("e", "c"):  # e fills the windows of a, so that c competes with it
        for number in range(200):
            handle(ev.CallArrived(call_of("a", number, user=user)), 0.0)
    for number in range(40):
        handle(ev.CallStarted(f"a-e-{number}", 0), 0.0)
    first = handle(ev.CallArrived(call_of("b", 0, user="c")), 0.0)
    while [each for each in first if isinstance(each, ev.Admit)]:  # until b's window is full
        number = len(pools["b"].feeder._charges._dispatched)
        first = handle(ev.CallArrived(call_of("b", number, user="c")), 0.0)
    feeder = pools["b"].feeder
    before = feeder.counter(("t", "c"))
    assert before > 40
    handle(ev.CallArrived(call_of("b", 0, user="d")), 0.0)
    assert feeder.counter(("t", "d")) == 0
    for number in range(3):  # service that c receives at a lifts a later newcomer
        handle(ev.CallStarted(f"a-c-{number}", 0), 0.0)
    handle(ev.CallArrived(call_of("b", 0, user="e")), 0.0)
    assert feeder.counter(("t", "d")) == 0, "d is the least served"
    received = feeder.counter(("t", "c")) - feeder._counters.outstanding(("t", "c"))
    assert received == pytest.approx(3 * 32 / 40), "the prompts of the calls that started"


def test_other_models_get_the_charges_of_ended_calls_only():
    """Unused reservations are released everywhere, and the charges of a lost worker refunded."""
    cluster = two_models()
    published = []
    other = cluster.dispatcher.pools["b"].feeder
    other.served_elsewhere = lambda *change: published.append(change)
    for user in "cd":
        flood(cluster, "a", user, 40)
    cluster.run(0.2)
    cluster.lose("a1")
    cluster.run(60)
    assert len(cluster.ended) == 80
    assert sum(change[2] for change in published) == pytest.approx(0.0)
    slices = dict.fromkeys("cd", 0.0)
    for path, served, _, factors in published:
        assert factors == (0.0, 1.0), "the users compete, within one tenant"
        slices[path[-1]] += served
    assert all(30 < amount <= 40 for amount in slices.values()), "a complete call is one slice"


def test_a_worker_belongs_to_one_model():
    cluster = two_models()
    with pytest.raises(ValueError, match="worker 'a0' has joined already"):
        cluster.event(ev.WorkerJoined("a0", 600, "b"))
    cluster.lose("a0")
    cluster.join("a0", 600, "b")
    assert "a0" in cluster.dispatcher.pools["b"].worker_table.workers
    assert "a0" not in cluster.dispatcher.pools["a"].worker_table.workers


def test_foreign_load_of_workers_counts_as_demand():
    cluster = two_models()
    demand, capacity = cluster.dispatcher.load()
    cluster.event(ev.WorkerReported("b0", foreign_tokens=500))
    assert cluster.dispatcher.load() == (demand + 500, capacity)
    cluster.event(ev.WorkerDraining("b0"))
    assert cluster.dispatcher.load() == (demand, capacity - 600)
    cluster.event(ev.WorkerReported("b0", foreign_tokens=0))
    assert cluster.dispatcher.load() == (demand, capacity - 600)
    with pytest.raises(ValueError, match="foreign_tokens is -1; allowed: 0 or more"):
        cluster.event(ev.WorkerReported("a0", foreign_tokens=-1))


@pytest.mark.parametrize("system", ["fairserve", "d2lpm", "central-dlpm"])
def test_a_restored_snapshot_gives_the_same_commands(system):
    cluster = two_models(system)
    shared = prompt((5, 32))
    for number in range(120):
        tokens = shared if number % 2 else None
        user = "cde"[number % 3]
        one = call_of("ab"[number % 5 == 0], number, user=user, tokens=tokens, output=8 + number)
        one.streamed = number % 4 > 0
        cluster.at(0.01 * number, one)
    cluster.run(0.6)
    restored = Dispatcher(cluster.system, seed=7)
    restored.restore(snapshot(cluster.dispatcher, cluster.now_s), cluster.now_s)
    handle, commands = cluster.dispatcher.handle, []

    def both(event, now_s):
        expected = handle(event, now_s)
        assert restored.handle(event, now_s) == expected
        commands.extend(expected)
        return expected

    cluster.dispatcher.handle = both
    cluster.run(60)
    assert len(commands) > 50
    assert len(cluster.ended) == 120
    assert snapshot(restored, 60.0) == snapshot(cluster.dispatcher, 60.0)


@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("fairserve", {}),
        ("fairserve", {"levels": "user"}),
        ("fairserve", {"feeder.locality_slack": 2.0}),
        ("d2lpm", {}),
        ("fcfs", {}),
    ],
)
def test_the_system_changes_for_all_models_while_calls_run(system, options):
    cluster = two_models()
    flood(cluster, "a", "c", 60)
    flood(cluster, "b", "d", 60)
    cluster.run(0.3)
    under_way = [
        (live.call, live.worker_id, live.usage()) for live in cluster.dispatcher._live.values()
    ]
    to = SYSTEMS[system].with_options(options)
    switch_system(cluster.dispatcher, to, under_way, 7, cluster.now_s)
    assert list(cluster.dispatcher.pools) == ["a", "b"]
    cluster.run(120)
    assert len(cluster.ended) == 120
    assert all(where(cluster, call_id)[0] == call_id[0] for call_id in cluster.ended)
    assert cluster.dispatcher.load()[0] == 0


def test_models_share_charges_after_a_change():
    cluster = two_models()
    switch_system(cluster.dispatcher, SYSTEMS["fs-wi"], [], 7, 0.0)
    cluster.arrive(call_of("a", 0))
    assert cluster.dispatcher.pools["a"].feeder._others == (cluster.dispatcher.pools["b"].feeder,)
