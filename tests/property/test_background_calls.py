"""Background calls get what the others leave: none delays another call, or has it rejected."""

import random

import pytest
from hypothesis import example, given
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

    def __init__(self, system="fairserve", *, workers=2, kv_tokens=600, **options):
        system = SYSTEMS[system].with_options(
            {"background_window": WINDOW, "background_calls": CALLS}
        )
        super().__init__(system, workers=workers, kv_tokens=kv_tokens, **options)
        self.event(ev.AppChanged("app", PROFILE, Limits()))

    def event(self, event):
        pool = self.dispatcher.first
        send = pool.background_feed._dispatch

        def checked(live, worker):
            assert not len(pool.feeder), "another call waits in the queue"
            waiting = self.workers[worker.worker_id].waiting.values()
            assert not waiting, "a call waits at the worker"
            at = [call for call in self._at(worker.worker_id) if call.background]
            assert len(at) < CALLS
            held = sum(call.most_tokens for call in [*at, live.call])
            assert held <= WINDOW * worker.kv_capacity_tokens
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


def waits_beside_long_background_calls(seed, kv_tokens, slots, tokens, output, *, beside=True):
    """Return the waits of calls that use at most half of a worker, in turns, and the largest prompt.

    Background calls of all sizes are expected to generate 10 tokens, and generate up to the cache.
    Without ``beside`` there are none.
    """
    rng = random.Random(seed)
    system = SYSTEMS["fairserve"].with_options({"background_calls": 64})
    cluster = VirtualCluster(system, workers=1, kv_tokens=kv_tokens, slots=slots)
    cluster.event(ev.AppChanged("app", PROFILE, Limits()))
    prompts = [rng.randint(1, 200) for _ in range(60)]
    for number, size in enumerate(prompts):
        longest = rng.choice((1, 50, kv_tokens))
        at_s, generated = rng.random(), rng.randint(1, longest)
        if beside:
            cluster.at(at_s, call(number, tokens=size, output=generated))
    at_once = min(slots // 2, kv_tokens // 2 // (tokens + output))
    ends_s = 0.0
    for turn in range(6):
        ends_s = 1.0 + 4.0 * turn
        for number in range(rng.randint(0, at_once)):
            one = call(number, f"t{turn}", background=False, tokens=tokens, output=output)
            cluster.at(ends_s, one)
    cluster.run(ends_s + 4.0)
    served = [name for name in cluster.calls if name.startswith("o")]
    assert set(served) <= set(cluster.ended)
    waits = [cluster.started_s[name] - cluster.arrived_s[name] for name in served]
    return waits, max(prompts), cluster


@example(1, 300, 32, 5, 4)  # so small that they enter one after the other
@given(
    st.integers(0, 2**32),
    st.integers(300, 6000),
    st.integers(1, 40),
    st.integers(5, 60),
    st.integers(1, 60),
)
def test_calls_that_fit_half_a_worker_wait_for_no_background_call(seed, kv, slots, tokens, output):
    """For every size of cache and batch they wait for the pass in progress and prompts, nothing else.

    Besides, they wait for each other, as they do where there are none.
    """
    sizes = kv, slots, tokens, output
    waits, prompt_tokens, cluster = waits_beside_long_background_calls(seed, *sizes)
    alone, _, _ = waits_beside_long_background_calls(seed, *sizes, beside=False)
    step_s = cluster.step_s + 2 * prompt_tokens * cluster.prefill_s_per_token
    assert max(waits, default=0.0) <= 2 * step_s + max(alone, default=0.0)


def test_background_calls_run_beside_the_others():
    _, _, cluster = waits_beside_long_background_calls(5, 4000, 16, 40, 20)
    assert any(name.startswith("b") for name in cluster.ended)


def test_calls_find_what_they_used_at_most_in_the_last_half_minute():
    """12 of 16 slots were in use a moment ago: background calls take no more than 4."""
    system = SYSTEMS["fairserve"].with_options({})
    cluster = VirtualCluster(system, workers=1, kv_tokens=20_000, slots=16)
    cluster.event(ev.AppChanged("app", PROFILE, Limits()))
    for turn, at_s in enumerate((0.0, 20.0)):
        for number in range(12):
            one = call(number, f"t{turn}", background=False)
            cluster.at(at_s, one)
    for number in range(40):
        cluster.at(1.0, call(number, output=1000))
    cluster.run(19.9)
    running = [state[0] for state in cluster.workers["w0"].running.values()]
    assert len(running) == 4
    assert all(each.background for each in running)
    cluster.run(21.0)
    late = [name for name in cluster.calls if name.startswith("o-t1")]
    assert max(cluster.started_s[name] - 20.0 for name in late) < 0.1, "within the first passes"


def test_a_call_without_room_beside_the_others_lets_smaller_ones_pass():
    """The others used most of the cache: a large background call waits, and blocks no small one."""
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=1, kv_tokens=2000, slots=64)
    cluster.event(ev.AppChanged("app", PROFILE, Limits()))
    for number in range(10):
        cluster.at(0.0, call(number, background=False, tokens=100, output=40))
    cluster.at(2.0, call(0, "large", tokens=100, output=800))
    cluster.at(2.1, call(1, "small"))
    cluster.run(5.0)
    assert list(cluster.started_s)[-1] == "b-small-1"
    assert "b-large-0" not in cluster.started_s
    cluster.run(90.0)
    assert "b-large-0" in cluster.ended


def test_a_worker_reports_what_background_calls_may_hold_at_most():
    cluster = VirtualCluster(SYSTEMS["fairserve"], workers=1, kv_tokens=1000, slots=9)
    pool = cluster.dispatcher.pool_of("")
    assert pool.background_rooms(call(0)) == [(500, 4)]
    cluster.arrive(call(1, output=460))
    cluster.run(30.0)
    cluster.arrive(call(2, output=470))
    cluster.run(60.0)
    assert list(cluster.ended) == ["b-u-1"], "the larger one waits for a larger worker"
    cluster.join("w1", 4000)
    cluster.run(90.0)
    assert list(cluster.ended) == ["b-u-1", "b-u-2"]


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
