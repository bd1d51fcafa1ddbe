"""Background calls get what the others leave: none delays another call, or has it rejected."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.switch import switch_system
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

PROFILE = AppProfile((StageProfile(40, 0, 10),), calls_per_interaction=1, idle_timeout_s=10.0)
WINDOW, CALLS = 0.4, 5


class Watched(VirtualCluster):
    """Checks each background call that is dispatched against the state just before its dispatch."""

    def __init__(self, system="fairserve", **options):
        system = SYSTEMS[system].with_options(
            {"background_window": WINDOW, "background_calls": CALLS}
        )
        super().__init__(system, workers=2, kv_tokens=600, **options)
        self.event(ev.AppChanged("app", PROFILE, Limits()))

    def event(self, event):
        pool = self.dispatcher.first
        send = pool.background_feed._dispatch

        def checked(live, worker):
            assert not len(pool.feeder), "another call waits in the queue"
            waiting = self.workers[worker.worker_id].waiting.values()
            assert all(call.background for call in waiting), "another call waits at the worker"
            at = [call for call in self._at(worker.worker_id) if call.background]
            assert len(at) < CALLS
            held = worker.demand_tokens + worker.background_tokens
            assert held < WINDOW * worker.kv_capacity_tokens
            return send(live, worker)

        pool.background_feed._dispatch = checked
        try:
            super().event(event)
        finally:
            pool.background_feed._dispatch = send

    def _at(self, worker_id):
        worker = self.workers[worker_id]
        return [*worker.waiting.values(), *(state[0] for state in worker.running.values())]


def call(number, user="u", *, background=True, tokens=40, output=10, **more):
    name = f"{'b' if background else 'o'}-{user}-{number}"
    own = prompt((10_000 + number * 7 + len(user), tokens))
    return make_call(name, user=user, tokens=own, output=output, background=background, **more)


@given(st.integers(0, 2**32), st.sampled_from(["fairserve", "d2lpm", "vtc", "fcfs", "preble"]))
def test_background_calls_wait_for_all_others_and_none_is_lost(seed, name):
    rng = random.Random(seed)
    cluster = Watched(name)
    for number in range(60):
        one = call(number, f"u{rng.randrange(3)}", background=rng.random() < 0.5)
        cluster.at(rng.random() * 2, one)
    cluster.run(rng.random() * 2)
    cluster.lose("w1")
    waiting = [name for name in cluster.calls if name not in cluster.ended]
    for name in rng.sample(waiting, min(3, len(waiting))):
        cluster.event(ev.CancelRequested(name))
    cluster.join("w1", 600)
    cluster.run(200.0)
    assert not cluster.refused
    assert set(cluster.ended) == set(cluster.calls)
    assert len(cluster.calls) == 60
    assert cluster.dispatcher.load() == (0, 1200)


def test_a_call_that_no_open_worker_can_serve_is_waited_for():
    cluster = Watched()
    cluster.event(ev.WorkerLost("w0"))
    cluster.event(ev.WorkerLost("w1"))
    cluster.event(ev.WorkerJoined("torch", 600, kind="torch"))
    cluster.workers["torch"] = cluster.workers.pop("w0")
    cluster.arrive(call(1, background=False, kinds=frozenset({"vllm"})))
    cluster.arrive(call(2))
    assert not cluster.admitted
    cluster.event(ev.CancelRequested("o-u-1"))
    cluster.event(ev.Tick())
    assert list(cluster.admitted) == ["b-u-2"]


def test_clients_share_what_is_left_by_weight():
    cluster = Watched()
    cluster.event(ev.UserChanged("t", "heavy", weight=3.0))
    for number in range(200):
        for user in ("heavy", "light"):
            cluster.at(0.0, call(number, user))
    cluster.run(6.0)
    served = [name.split("-")[1] for name in cluster.ended]
    assert 40 < len(served) < 300
    assert served.count("heavy") / served.count("light") == pytest.approx(3.0, rel=0.25)


def test_background_service_is_not_charged_in_the_queue_of_the_others():
    cluster = Watched()
    for number in range(50):
        cluster.at(0.0, call(number, "batch"))
    cluster.run(3.0)
    assert cluster.ended
    assert cluster.dispatcher.first.feeder.counter(("t", "batch")) == 0.0
    assert cluster.dispatcher.first.background_feeder.counter(("t", "batch")) > 0.0


def test_background_calls_are_no_load_and_meet_no_overload_limit():
    """A queue of 50 times the capacity overloads nothing; under overload they still only wait."""
    cluster = Watched()
    cluster.event(ev.AppChanged("app", PROFILE, Limits(user_rpm=1)))
    for number in range(1200):
        cluster.arrive(call(number))
    cluster.arrive(call(0, "other", background=False))
    cluster.arrive(call(1, "other", background=False))
    assert not cluster.dispatcher.overloaded
    for number in range(100):
        cluster.arrive(call(number, f"crowd{number}", background=False))
    assert cluster.dispatcher.overloaded
    cluster.arrive(call(2, "other", background=False))
    assert "o-other-2" in cluster.refused, "the limit is in force"
    cluster.arrive(call(9_999))
    assert "b-u-9999" not in cluster.refused


def test_an_arriving_call_finds_a_worker_at_once_beside_any_number_of_background_calls():
    cluster = Watched()
    for number in range(900):
        cluster.at(0.0, call(number))
    for number in range(8):
        cluster.at(1.0 + number, call(number, "other", background=False))
    cluster.run(10.0)
    waits = [
        cluster.started_s[name] - cluster.arrived_s[name]
        for name in cluster.calls
        if name.startswith("o")
    ]
    assert len(waits) == 8
    assert max(waits) < 0.1, "within the step in which it arrives"
    assert len(cluster.ended) < 900, "background calls waited throughout"


@pytest.mark.parametrize("other", ["fairserve", "fcfs", "d2lpm"])
def test_a_switched_system_keeps_the_background_calls(other):
    cluster = Watched()
    for number in range(40):
        cluster.at(0.0, call(number))
        cluster.at(0.0, call(number, "other", background=False))
    cluster.run(0.5)
    states = [
        (live.call, live.worker_id, live.usage()) for live in cluster.dispatcher._live.values()
    ]
    assert {bool(worker) for _, worker, _ in states} == {True, False}
    options = {"background_window": WINDOW, "background_calls": CALLS}
    switch_system(
        cluster.dispatcher, SYSTEMS[other].with_options(options), states, 7, cluster.now_s
    )
    cluster.run(100.0)
    assert set(cluster.ended) == set(cluster.calls)
    assert len(cluster.ended) == 80
