"""Every system loses and repeats no call, is deterministic, and work conserving."""

import copy
import json
import random
from dataclasses import asdict

import pytest
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

NAMES = list(SYSTEMS)


def _one_of_each_dispatcher():
    """Return the first of the systems that differ only in name and local scheduler."""
    found = {}
    for name in NAMES:
        plain = asdict(SYSTEMS[name])
        for ours in ("name", "local", "local_options", "simulated_only"):
            del plain[ours]
        found.setdefault(json.dumps(plain, sort_keys=True), name)
    return list(found.values())


def test_a_feeder_that_orders_has_a_queue():
    """Without a feed window calls are dispatched at once, and nothing is left to order."""
    queued = {name for name, system in SYSTEMS.items() if system.feed_window is not None}
    assert {name for name, system in SYSTEMS.items() if system.feeder != "fcfs"} <= queued


DISPATCHERS = _one_of_each_dispatcher()
histories = pytest.mark.parametrize(
    ("calls", "span_s"), [(120, 6.0), pytest.param(800, 40.0, marks=pytest.mark.deep)]
)


def workload(seed, cluster, calls, span_s):
    """Return bursts of several users with shared prefixes, runs of several calls, some cancelled."""
    rng = random.Random(seed)
    for app in range(3):
        profile = AppProfile(
            (StageProfile(rng.randint(10, 300), 0, rng.randint(2, 40)),),
            calls_per_interaction=rng.randint(1, 4),
            idle_timeout_s=10.0,
        )
        cluster.event(ev.AppChanged(f"app{app}", profile, Limits(user_rpm=rng.choice([None, 5]))))
    for number in range(calls):
        user = rng.randrange(6)
        tokens = prompt(
            (rng.randrange(5), 16 * rng.randrange(8)), (1000 + number, rng.randint(1, 60))
        )
        call = make_call(
            f"c{number}",
            user=f"u{user}",
            app=f"app{user % 3}",
            run=f"R{user}-{rng.randrange(3)}" if rng.random() < 0.5 else None,
            tokens=tokens,
            output=rng.randint(1, 30),
            remaining_tokens=float(number % 7),
            background=number % 4 == 0,
        )
        cluster.at(rng.random() * span_s, call)


def play(name, seed, calls=120, span_s=6.0, **options):
    cluster = VirtualCluster(SYSTEMS[name], workers=3, kv_tokens=700, **options)
    workload(seed, cluster, calls, span_s)
    return cluster


@histories
@pytest.mark.parametrize("name", NAMES)
def test_each_call_is_served_once_or_rejected_once(name, seed, calls, span_s):
    cluster = play(name, seed, calls, span_s)
    cluster.run(1.5)
    cluster.event(ev.WorkerDraining("w0"))
    cluster.event(ev.WorkerDraining("w2"))
    cluster.run(1.55)
    cluster.event(ev.WorkerUndrained("w2"))  # it still has calls
    cluster.run(2.0)
    cluster.lose("w1")
    cluster.run(2.5)
    cluster.event(ev.WorkerUndrained("w0"))
    cluster.run(3.0)
    cluster.join("w1", 700)
    cluster.run(span_s + 120.0)
    arrived = set(cluster.calls)
    assert len(arrived) == calls
    assert set(cluster.ended) | set(cluster.refused) == arrived
    assert not set(cluster.ended) & set(cluster.refused)
    dispatcher = cluster.dispatcher
    assert dispatcher.load() == (0, 2100)
    assert len(dispatcher.first.feeder) == len(dispatcher.first.background_feeder) == 0
    assert len(dispatcher.tracker) == 0, "every interaction ended"
    for worker in dispatcher.first.worker_table.workers.values():
        assert (worker.calls, worker.waiting_tokens, worker.demand_tokens) == (0, 0, 0)
        assert (worker.background.calls, worker.background.tokens) == (0, 0)
    loads = dispatcher.first.router.snapshot().get("loads", {})
    assert set(loads.values()) <= {0}
    for worker in cluster.workers.values():
        assert worker.held == 0
        assert len(worker.local) == 0


@pytest.mark.parametrize("name", NAMES)
def test_equal_input_gives_an_equal_schedule(name):
    runs = []
    for _ in range(2):
        cluster = play(name, 5)
        cluster.run(60.0)
        runs.append((cluster.admitted, cluster.ended, cluster.refused))
    assert runs[0] == runs[1]


def check_conserved(name, seed):
    """Work is conserved: who waits after an event finds all windows full, or no memory to begin.

    There is none for runs of a class of size if there is none for one of them, or if one would delay
    the run that is held.
    """
    cluster = play(name, seed)
    plain_event = cluster.event

    def checked(event):
        plain_event(event)
        pool = cluster.dispatcher.first
        if open_workers := pool.worker_table.open:
            waiting = list(pool.feeder.waiting())
            held = {
                each.restriction
                for each in waiting
                if not pool.gate._room(each, open_workers)
                or not pool.gate._room(each, open_workers, pool.gate._held)
            }
            for call in waiting:
                assert call.restriction in held
                assert not pool.feeder.has_begun(call.interaction_id)

    cluster.event = checked
    cluster.run(60.0)
    assert cluster.ended


@pytest.mark.parametrize("name", DISPATCHERS)
def test_no_worker_has_capacity_while_a_call_waits(name, seed):
    check_conserved(name, seed)


@pytest.mark.parametrize("seed", [11, 68])
def test_a_call_gets_room_where_the_one_before_it_has_none(seed):
    """The worker with the prefix of the first is full; the next fits, and not where the first does."""
    check_conserved("fairserve", seed)


@histories
@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("name", DISPATCHERS)
def test_a_restored_snapshot_reaches_the_same_state(name, publishes, seed, calls, span_s):
    """Histories cut at random points and restored from JSON lead to the same commands and final state.

    In half of them the workers report what they store and evict.
    """
    cluster = play(name, seed, calls, span_s, publishes=publishes, evict_share=0.2 * publishes)
    log = []
    handle = cluster.dispatcher.handle

    def recording(event, now_s):
        own = copy.deepcopy(event)  # a dispatcher completes the calls that it gets
        commands = handle(event, now_s)
        log.append((own, now_s, rounded([asdict(each) for each in commands])))
        return commands

    cluster.dispatcher.handle = recording
    cluster.run(1.0)
    cluster.event(ev.WorkerDraining("w0"))
    cluster.run(1.5)
    cluster.lose("w2")
    cluster.run(2.0)
    cluster.event(ev.WorkerUndrained("w0"))
    cluster.run(span_s + 14.0)

    plain = Dispatcher(SYSTEMS[name], seed=7)
    for worker in ("w0", "w1", "w2"):
        plain.handle(ev.WorkerJoined(worker, 700), 0.0)
        if publishes:
            plain.handle(ev.WorkerCacheReset(worker, complete=True), 0.0)
    for app in range(3):  # settings were applied before the recording began
        plain.handle(cluster.dispatcher.directory._apps[f"app{app}"], 0.0)
    restored = None
    cut = random.Random(seed).randrange(len(log))
    for number, (event, now_s, expected) in enumerate(log):
        other = copy.deepcopy(event)
        if number == cut:
            state = json.loads(json.dumps(plain.snapshot(now_s)))
            restored = Dispatcher(SYSTEMS[name], seed=7)
            restored.restore(state, now_s)
            assert rounded(restored.snapshot(now_s)) == rounded(state)
        commands = plain.handle(event, now_s)
        assert rounded([asdict(each) for each in commands]) == expected, (
            "a snapshot changes nothing"
        )
        if restored is not None:
            commands = restored.handle(other, now_s)
            assert rounded([asdict(each) for each in commands]) == expected
    end_s = log[-1][1]
    assert rounded(restored.snapshot(end_s)) == rounded(plain.snapshot(end_s))


def rounded(state):
    """Round ages, which differ in the last bits of their floats."""
    return json.loads(json.dumps(state), parse_float=lambda text: round(float(text), 6))
